#include "report/hints/families.h"

#include "base/format.h"

#include <string_view>

namespace torchnan {
namespace {

Hint hint_for_inverse(const Operation& op) {
  const Argument x = op.self();
  if (!x.is_finite()) return {};
  return about(x, format_text("{} is singular, or so nearly that its inverse is beyond {}", x.input->name, op.dtype()));
}

Hint hint_for_solution(const Operation& op, std::string_view matrix) {
  const Argument a = op.argument(matrix);
  if (!a || !op.is_of_finite()) return {};
  return about(a, format_text("{} is singular, or the solution is beyond {}", a.input->name, op.dtype()));
}

Hint hint_for_determinant(const Operation& op) {
  const Argument x = op.self();
  if (op.finding().neginf == 0 || !x.is_finite()) return {};
  return about(x, format_text("{} is singular: the logarithm of a determinant of 0 is -inf", x.input->name));
}

}  // namespace

Hint hint_of_linear_algebra(const Operation& op) {
  static constexpr OperatorRule kRules[] = {
      {"linalg_inv_ex", hint_for_inverse},
      {"_linalg_solve_ex", [](const Operation& op) { return hint_for_solution(op, "A"); }},
      {"linalg_solve_triangular", [](const Operation& op) { return hint_for_solution(op, "self"); }},
      {"triangular_solve", [](const Operation& op) { return hint_for_solution(op, "A"); }},
      {"linalg_lu_solve", [](const Operation& op) { return hint_for_solution(op, "LU"); }},
      {"lu_solve", [](const Operation& op) { return hint_for_solution(op, "LU_data"); }},
      {"cholesky_inverse", hint_for_inverse},
      {"cholesky_solve", [](const Operation& op) { return hint_for_solution(op, "input2"); }},
      {"_cholesky_solve_helper", [](const Operation& op) { return hint_for_solution(op, "A"); }},
      {"_linalg_slogdet", hint_for_determinant},
  };
  return hint_by_operator(kRules, op);
}

}  // namespace torchnan
