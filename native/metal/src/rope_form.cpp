#include "rope_form.h"

#include <algorithm>
#include <cmath>

namespace muser {

namespace {

/// Part of a pair's length by which it may be off. f16 and fast trigonometry stay below 0.01; another base or a scaled
/// frequency is off by 0.1 at the least at some of the positions.
constexpr double kTolerance = 0.05;
/// Pairs that are shorter than this part of the average say nothing: they are noise.
constexpr double kShortest = 1e-3;

/// The greatest error over all pairs, heads taken together, of `key` against `origin` turned by the angles of `base`;
/// without a base, against `origin` as it is.
double error_of(const std::vector<float>& origin, const KeyAt& key, uint32_t head_dim, const double* base) {
  const uint32_t half = head_dim / 2;
  const double average = [&] {
    double sum = 0;
    for (const float element : origin) sum += static_cast<double>(element) * element;
    return sum / half;
  }();
  double worst = 0;
  for (uint32_t pair = 0; pair < half; ++pair) {
    const double angle = base == nullptr ? 0 : key.position * std::pow(*base, -2.0 * pair / head_dim);
    const double cosine = std::cos(angle);
    const double sine = std::sin(angle);
    double length = 0;
    double error = 0;
    for (size_t head = 0; head + head_dim <= origin.size(); head += head_dim) {
      const double x = origin[head + pair];
      const double y = origin[head + pair + half];
      const double dx = key.elements[head + pair] - (x * cosine - y * sine);
      const double dy = key.elements[head + pair + half] - (x * sine + y * cosine);
      length += x * x + y * y;
      error += dx * dx + dy * dy;
    }
    if (!std::isfinite(error)) return HUGE_VAL;
    if (length > kShortest * average) worst = std::max(worst, std::sqrt(error / length));
  }
  return average > 0 ? worst : HUGE_VAL;  // an empty row agrees with everything, and says nothing
}

}  // namespace

Turn turn_of(const std::vector<KeyAt>& keys, uint32_t head_dim, double base) {
  double still = 0;
  double turned = 0;
  for (const KeyAt& key : keys) {
    still = std::max(still, error_of(keys.front().elements, key, head_dim, nullptr));
    turned = std::max(turned, error_of(keys.front().elements, key, head_dim, &base));
  }
  if (still < kTolerance) return Turn::None;
  return turned < kTolerance ? Turn::Rope : Turn::Other;
}

}  // namespace muser
