// A chunk's rows on their way into llama.cpp's state form and out again, with hostile geometries, ranges, sizes and values:
// a stage takes exactly what fits, gives a state only when it is whole, and the state has the rows that were put. A state
// with changed bytes is refused or read, never beyond its end.
#include "stage_buffer.h"

#include <cstring>
#include <map>

#include "export_view.h"
#include "host.h"
#include "synthetic_state.h"

namespace muser::fuzz {

namespace {

using kv::CacheType;
using kv::Geometry;
using kv::Kind;
using kv::KvError;
using kv::KvErrorCode;
using kv::LayerKind;
using kv::StageBuffer;
using kv::StateForm;
using kv::WireType;

constexpr uint32_t kMaxRows = 40;
constexpr int kMaxPuts = 60;
constexpr uint16_t kInfinity = 0x7c00;

/// The key of a row: layer, kind, token.
using RowKey = std::tuple<uint32_t, Kind, uint32_t>;

Geometry geometry_of(Choices& choose) {
  Geometry geometry;
  for (uint32_t left = choose.integer(1, 5); left > 0; --left) {
    geometry.layers.push_back(choose.one_in(2) ? LayerKind::Window : LayerKind::Global);
  }
  geometry.kv_heads = choose.pick<uint32_t>({1, 2, 3});
  geometry.head_dim = choose.pick<uint32_t>({2, 8, 32, 64, 128});
  geometry.window = geometry.has_window() ? choose.pick<uint32_t>({1, 8, 16, 64}) : 0;
  geometry.k_interleaved = choose.one_in(2);
  return geometry;
}

/// What llama.cpp would write for a sequence with one token.
StateForm form_of(Choices& choose, const Geometry& geometry) {
  kv::SyntheticState probe;
  probe.geometry = geometry;
  probe.v_transposed = choose.one_in(3);
  probe.global_positions = {0};
  probe.window_positions = {0};
  const std::vector<uint8_t> state = probe.bytes();
  StateForm form = kv::learn_state_form(state.data(), state.size(), geometry);
  if (!choose.one_in(3) || geometry.row_elements() % 32 != 0) return form;
  form.type = CacheType::Q8_0;
  form.v_transposed = false;
  form.type_id = 8;
  form.row_bytes = geometry.row_elements() / 32 * 34;
  form.k_rotation = form.v_rotation = geometry.head_dim % 64 == 0 ? 64 : 0;
  return form;
}

/// One stage, and what was put into it.
class Course {
 public:
  Course(Choices& choose, const Geometry& geometry, const StateForm& form, uint32_t start, uint32_t end,
         uint32_t window_start)
      : choose_(choose), geometry_(geometry), form_(form), stage_(geometry, form, start, end, window_start) {}

  /// Rows of every layer in order; or, here and there, something else.
  void fill() {
    int puts = 0;
    for (uint32_t layer = 0; layer < geometry_.layers.size(); ++layer) {
      for (const Kind kind : {Kind::K, Kind::V}) {
        for (uint32_t token = first_row(layer); token < stage_.end() && puts < kMaxPuts; ++puts) {
          if (choose_.one_in(12)) put_anything();
          const uint32_t count = std::min(choose_.integer(1, kMaxRows), stage_.end() - token);
          put(layer, kind, token, count, 0);
          token += count;
        }
      }
    }
  }

  void check() {
    uint64_t rows = 0;
    for (uint32_t layer = 0; layer < geometry_.layers.size(); ++layer) rows += 2 * (stage_.end() - first_row(layer));
    require(stage_.complete() == (values_.size() == rows), "is complete with rows missing, or the other way round");
    try {
      const auto state = stage_.state(7);
      require(stage_.complete(), "gave a state that is not whole");
      require(state.size() == stage_.size(), "has a state of another size");
      read_back({state.begin(), state.end()});
      read_changed({state.begin(), state.end()});
    } catch (const KvError& error) {
      require(error.code() == KvErrorCode::Sequence && !stage_.complete(), error.what());
    }
  }

 private:
  uint32_t first_row(uint32_t layer) const {
    return geometry_.layers[layer] == LayerKind::Window ? stage_.window_start() : stage_.start();
  }

  void put_anything() {
    const auto layers = static_cast<uint32_t>(geometry_.layers.size());
    const auto layer = choose_.pick<uint32_t>({0, layers - 1, layers, UINT32_MAX});
    const Kind kind = choose_.one_in(2) ? Kind::V : Kind::K;
    const uint32_t start = stage_.start();
    const auto token = choose_.pick<uint32_t>({0, start - 1, start, stage_.window_start(), stage_.end() - 1, stage_.end(),
                                              UINT32_MAX, UINT32_MAX - 3});
    const auto count = choose_.pick<uint32_t>({0, 1, 2, stage_.end() - start, kMaxRows});
    put(layer, kind, token, count, choose_.pick<int>({0, 0, -1, 1, -2, 2}));
  }

  /// `excess`: bytes more or less than the rows take. Buffers have their very size, so that a read beyond them is found.
  void put(uint32_t layer, Kind kind, uint32_t token, uint32_t count, int excess) {
    const WireType type = choose_.one_in(2) ? WireType::BF16 : WireType::F16;
    const size_t elements = count * geometry_.row_elements();
    std::vector<uint8_t> bytes(std::max<int64_t>(0, static_cast<int64_t>(2 * elements) + excess));
    const bool finite = !choose_.one_in(8) || elements == 0;
    for (size_t i = 0; 2 * i + 1 < bytes.size(); ++i) set_element(bytes, i, element(layer, kind, token, i, type));
    if (!finite) set_element(bytes, choose_.integer(0, 255) % elements, type == WireType::F16 ? kInfinity : 0x7fc0);
    const bool fits = layer < geometry_.layers.size() && count > 0 && excess == 0 && token >= first_row(layer) &&
                      uint64_t{token} + count <= stage_.end() && !any_there(layer, kind, token, count);
    try {
      stage_.put(layer, kind, token, count, type, bytes.data(), bytes.size());
    } catch (const KvError& error) {
      const KvErrorCode expected = fits ? KvErrorCode::ValueInvalid : KvErrorCode::Range;
      require(error.code() == expected && !(fits && finite), error.what());
      return;
    }
    require(fits && finite, "took rows that do not fit");
    for (uint32_t row = 0; row < count; ++row) {
      for (size_t i = 0; i < geometry_.row_elements(); ++i) {
        values_[{layer, kind, token + row}].push_back(
            element(layer, kind, token, row * geometry_.row_elements() + i, WireType::F16));
      }
    }
  }

  bool any_there(uint32_t layer, Kind kind, uint32_t token, uint32_t count) const {
    for (uint32_t row = 0; row < count; ++row) {
      if (values_.contains({layer, kind, token + row})) return true;
    }
    return false;
  }

  /// 0.5, 1, 2 or 4 with a sign: the same in f16 and bf16.
  static uint16_t element(uint32_t layer, Kind kind, uint32_t token, size_t i, WireType type) {
    const auto mixed = static_cast<uint32_t>(layer * 31 + (kind == Kind::V ? 17 : 0) + token * 7 + i * 13);
    const auto exponent = static_cast<uint16_t>(mixed % 4);
    const auto sign = static_cast<uint16_t>((mixed / 4 % 2) << 15);
    const bool is_half = type == WireType::F16;
    return sign | static_cast<uint16_t>(is_half ? (14 + exponent) << 10 : (126 + exponent) << 7);
  }

  static void set_element(std::vector<uint8_t>& bytes, size_t at, uint16_t value) {
    if (2 * at + 1 < bytes.size()) std::memcpy(bytes.data() + 2 * at, &value, sizeof(value));
  }

  /// Quantized values come back nearly, so only their sizes are looked at.
  void read_back(const std::vector<uint8_t>& state) const {
    const kv::ExportView view(geometry_, form_, state, stage_.start(), stage_.end(), stage_.window_start());
    for (const auto& [key, expected] : values_) {
      const auto& [layer, kind, token] = key;
      std::vector<uint8_t> row(geometry_.wire_row_bytes());
      require(view.read(layer, kind, token, 1, row.data(), row.size()) == row.size(), "reads another number of bytes");
      if (form_.type != CacheType::F16) continue;
      require(std::memcmp(row.data(), expected.data(), row.size()) == 0, "has another row than the one that was put");
    }
  }

  void read_changed(std::vector<uint8_t> state) {
    for (uint32_t left = choose_.integer(0, 3); left > 0; --left) {
      const size_t at = choose_.integer(0, 0xffff) % state.size();
      state[at] = static_cast<uint8_t>(choose_.integer(0, 255));
    }
    if (choose_.one_in(4)) state.resize(choose_.integer(0, 0xffff) % (state.size() + 8));
    try {
      read_all(kv::ExportView(geometry_, form_, state, stage_.start(), stage_.end(), stage_.window_start()));
      kv::learn_state_form(state.data(), state.size(), geometry_);
    } catch (const KvError&) {
      // Which of the codes depends on the byte.
    }
  }

  void read_all(const kv::ExportView& view) const {
    for (const auto& [key, _] : values_) {
      const auto& [layer, kind, token] = key;
      std::vector<uint8_t> row(geometry_.wire_row_bytes());
      try {
        view.read(layer, kind, token, 1, row.data(), row.size());
      } catch (const KvError& error) {
        require(error.code() == KvErrorCode::ValueInvalid, error.what());
      }
    }
  }

  Choices& choose_;
  Geometry geometry_;
  StateForm form_;
  StageBuffer stage_;
  std::map<RowKey, std::vector<uint16_t>> values_;
};

}  // namespace

void run(const uint8_t* data, size_t size) {
  Choices choose(data, size);
  const Geometry geometry = geometry_of(choose);
  const StateForm form = form_of(choose, geometry);
  const auto start = choose.pick<uint32_t>({0, 5, 1000, INT32_MAX - 50, INT32_MAX, UINT32_MAX - 2});
  const uint32_t end = start + choose.pick<uint32_t>({1, 3, 16, 33, kMaxRows, 0});
  const uint32_t back = choose.pick<uint32_t>({0, 1, 8, 16, kMaxRows, 50});
  const uint32_t window_start = choose.one_in(6) ? end + back : end - back;
  const uint32_t window_rows = end - window_start;
  const bool fits = start < end && end <= INT32_MAX && window_start <= end && window_start >= start &&
                    (!geometry.has_window() || window_rows <= geometry.window);
  try {
    Course course(choose, geometry, form, start, end, window_start);
    require(fits, "a stage for rows that do not fit");
    course.fill();
    course.check();
  } catch (const KvError& error) {
    require(error.code() == KvErrorCode::Range && !fits, error.what());
  }
}

}  // namespace muser::fuzz
