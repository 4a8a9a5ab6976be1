// The ledger of a sequence's rows under any course of calls: what it allows it also records, what it refuses changes
// nothing, and where it says that decoding can go on the window rows for it were recorded.
#include "ledger.h"

#include "host.h"

namespace muser::fuzz {

namespace {

using kv::Geometry;
using kv::KvError;
using kv::LayerKind;
using kv::SequenceLedger;
using kv::TokenRange;

uint32_t hostile_number(Choices& choose) {
  return choose.pick<uint32_t>({0, 1, 7, 8, 9, 1000, INT32_MAX, UINT32_MAX - 1, UINT32_MAX});
}

/// A number near `value`, or any number at all.
uint32_t near(Choices& choose, uint32_t value) {
  if (choose.one_in(6)) return hostile_number(choose);
  return value + choose.integer(0, 8) - choose.pick<uint32_t>({0, 0, 4, 8});
}

/// Does what is allowed and fails exactly where `reason` has said so.
template <typename Call>
bool done_if_allowed(const std::string& reason, const Call& call) {
  try {
    call();
  } catch (const KvError& error) {
    require(error.code() == kv::KvErrorCode::Sequence, "refused with another code");
    require(!reason.empty(), "refused what it had allowed");
    return false;
  }
  require(reason.empty(), "did what it had refused");
  return true;
}

void check(const SequenceLedger& ledger, uint32_t window) {
  const TokenRange rows = ledger.window();
  require(rows.start <= rows.end && rows.end <= ledger.position(), "window rows beyond the end");
  if (window == 0) return;
  require(rows.count() <= window, "more window rows than the window has");
  if (ledger.decodable() && ledger.position() > 0) {
    const uint32_t from = ledger.position() >= window ? ledger.position() - window + 1 : 0;
    require(rows.start <= from && rows.end == ledger.position(), "decodes without the rows that it needs");
  }
}

void one_call(Choices& choose, SequenceLedger& ledger) {
  const uint32_t position = ledger.position();
  const TokenRange window = ledger.window();
  const auto unchanged = [&] {
    require(ledger.position() == position && ledger.window().start == window.start, "a refusal has changed it");
  };
  switch (choose.integer(0, 4)) {
    case 0: {
      const uint32_t tokens = near(choose, 1);
      if (!done_if_allowed(ledger.can_decode(tokens), [&] { ledger.after_decode(tokens); })) return unchanged();
      return require(ledger.position() == position + tokens, "decoded another number of tokens");
    }
    case 1: {
      const uint32_t start = choose.one_in(4) ? near(choose, position) : position;
      const uint32_t end = near(choose, start + 4);
      const uint32_t from = choose.one_in(3) ? near(choose, start) : end > 8 + start ? end - 8 : start;
      const auto install = [&] { ledger.after_install(start, end, from); };
      if (!done_if_allowed(ledger.can_install(start, end, from), install)) return unchanged();
      return require(start == position && ledger.position() == end && end > start, "installed out of order");
    }
    case 2: {
      const uint32_t to = near(choose, position > 4 ? position - 4 : 0);
      if (!done_if_allowed(ledger.can_truncate(to), [&] { ledger.after_truncate(to); })) return unchanged();
      return require(ledger.position() == to && (to == position || ledger.decodable()), "cut where nothing can go on");
    }
    case 3: {
      const uint32_t end = near(choose, position);
      const uint32_t start = near(choose, end > 4 ? end - 4 : 0);
      const uint32_t from = near(choose, start);
      if (!ledger.can_export(start, end, from).empty()) return;
      return require(start < end && end <= position && from >= start && from <= end, "exports what is not there");
    }
    default: {
      const auto fork = [&] { require(ledger.forked().decodable(), "a fork that cannot decode"); };
      done_if_allowed(ledger.can_fork(), fork);
    }
  }
}

}  // namespace

void run(const uint8_t* data, size_t size) {
  Choices choose(data, size);
  Geometry geometry{.layers = {LayerKind::Global}, .kv_heads = 1, .head_dim = 2, .window = 0};
  geometry.window = choose.pick<uint32_t>({0, 1, 2, 8, 1024});
  if (geometry.window > 0) geometry.layers.push_back(LayerKind::Window);
  SequenceLedger ledger(geometry);
  for (int calls = 0; calls < 200 && !choose.done(); ++calls) {
    one_call(choose, ledger);
    check(ledger, geometry.window);
  }
}

}  // namespace muser::fuzz
