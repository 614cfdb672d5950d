// Recurrent layers in one kernel.
#include <algorithm>
#include <cmath>

#include "bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;
constexpr int64_t kLstm = 2;

// mkldnn_rnn_layer(x, w_x, w_h, b_x, b_h, h, c, reverse, sizes, mode, hidden, ...): h = o tanh(c) and
// c' = f c + i g, with f, i, o sigmoids and g a tanh of x w_x + h w_h + b_x + b_h.
void mkldnn_rnn_layer(A a, Results out) {
  const auto steps = static_cast<double>(std::max(a.size(0, 0), a.size(0, 1)));  // either comes first
  if (a.integer(9, 0) != kLstm || a.numel(0) == 0) return;
  const double h = largest({1, a.max_abs(5)});
  const double gates = a.sum_of(static_cast<double>(a.size(0, -1)), a.max_abs(0) * a.max_abs(1)) +
                       a.sum_of(static_cast<double>(a.integer(10, 0)), h * a.max_abs(2));
  if (!(kRoundedFactors * gates + a.max_abs(3) + a.max_abs(4) < a.limit())) return;
  out[0] = {1};
  out[1] = {1};
  out[2] = {a.sum_of(steps + 1, 1) / (steps + 1) * (a.max_abs(6) + steps)};
}

}  // namespace

void add_recurrent_rules(RuleTable& table) { table["mkldnn_rnn_layer"] = mkldnn_rnn_layer; }

}  // namespace torchnan
