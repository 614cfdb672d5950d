// Recurrent layers in one kernel.
#include <algorithm>
#include <cmath>

#include "check/bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;
constexpr int64_t kLstm = 2;

// mkldnn_rnn_layer(x, w_x, w_h, b_x, b_h, h, c, reverse, sizes, mode, hidden, ...): h = o tanh(c) and
// c' = f c + i g, with f, i, o sigmoids and g a tanh of x w_x + h w_h + b_x + b_h.
void mkldnn_rnn_layer(A a, Results out) {
  const auto steps = static_cast<double>(std::max(a.size(0, 0), a.size(0, 1)));  // either comes first
  if (a.integer(9, 0) != kLstm || a.numel(0) == 0) return;
  Value h = a[5];
  h.max_abs = std::max(h.max_abs, 1.0);
  const Value gates = dot(a[0], a[1], static_cast<double>(a.size(0, -1))) + a[3] +
                      (dot(h, a[2], static_cast<double>(a.integer(10, 0))) + a[4]);
  if (!gates.known()) return;
  Value cell = a[6];
  cell.max_abs += steps;
  cell.max_abs *= growth_of_sum(steps + 1, kFactorRange);  // it may be kept in a narrower type between steps
  out[0] = {1};
  out[1] = {1};
  out[2] = Value{.max_abs = cell.max_abs, .in = cell.in};
}

}  // namespace

void add_recurrent_rules(RuleTable& table) { table["mkldnn_rnn_layer"] = mkldnn_rnn_layer; }

}  // namespace torchnan
