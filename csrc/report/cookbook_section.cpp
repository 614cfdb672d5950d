#include "report/cookbook_section.h"

#include <algorithm>
#include <string>

#include "report/operator_name.h"

namespace torchnan {
namespace {

struct Section {
  std::string_view reason;  // a part of the hint
  std::string_view title;
  std::string_view op = "";  // as bare_operator_name() has it; empty if any operation may have the cause
};

// The first that fits counts.
constexpr Section kSections[] = {
    {"targets are ignore_index", "1. A mean over nothing"},
    {"has no elements: a mean over nothing", "2. A mask that selects nothing"},
    {"the variance of a single element", "6. The standard deviation of one element"},
    {"has grown from", "31. A learning rate that is too high"},
    {"1/sqrt(0) is inf", "7. A norm without epsilon", "rsqrt"},
    {"tensor2 holds zeros", "8. Adam without epsilon", "addcdiv"},
    {" holds zeros; in ", "4. A row that sums to zero", "div"},
    {"x/0 is inf", "9. A temperature of zero", "div"},
    {"1/0 is inf", "10. A learned scale that reaches zero", "reciprocal"},
    {"log(0) is -inf", "11. The logarithm of a probability that is zero"},
    {"their logarithm is NaN", "14. The logarithm of a negative number"},
    {"their square root is NaN", "15. The square root of a negative number"},
    {"a negative base to the power", "18. A fractional power of a negative number"},
    {"acos of them is NaN", "19. The arccosine of a cosine"},
    {"div made NaN of it", "20. A softmax by hand", "exp"},
    {" is more than", "21. The exponential of a learned log-variance", "exp"},
    {" is beyond", "22. A product of many factors", "prod"},
    {"float16 can hold", "23. A sum in float16", "sum"},
    {"float16 can hold", "24. Attention scores in float16", "mm"},
    {"float16 can hold", "24. Attention scores in float16", "bmm"},
    {"the largest that float16 can hold", "25. A number too large for float16"},
    {"softmax of a fully masked row is 0/0", "26. A row that is masked completely"},
    {"0 * inf is NaN", "27. A mask that is multiplied by infinity"},
    {"inf - inf is NaN", "28. The difference of two infinities"},
    {"too short for its target", "34. A CTC target longer than its input"},
    {"two eigenvalues are equal", "36. The gradient of an eigenvector"},
};

// In a node of the backward pass other operations compute the slope of the forward call's.
constexpr Section kSectionsOfNodes[] = {
    {"the slope of sqrt at 0 is infinite: 1 / (2 sqrt(0)), as in a norm of zeros; where the gradient is 0 too",
     "17. A `where` that hides a NaN from the forward pass only"},
    {"the slope of sqrt at 0 is infinite", "16. The gradient of a square root at zero"},
    {"two eigenvalues are equal", "36. The gradient of an eigenvector"},
};

template <size_t n>
std::string_view find_section(const Section (&sections)[n], const Finding& f) {
  const std::string_view op = bare_operator_name(f.op);
  const auto found = std::find_if(std::begin(sections), std::end(sections), [&](const Section& one) {
    return (one.op.empty() || op == one.op) && f.hint.find(one.reason) != std::string::npos;
  });
  return found == std::end(sections) ? "" : found->title;
}

}  // namespace

std::string_view cookbook_section(const Finding& f) {
  if (f.origin == Origin::kInput && f.kind == Kind::kNaN) return "29. A NaN in the data";
  if (f.origin == Origin::kParameter) return "30. A bad weight in a checkpoint";
  if (f.origin != Origin::kOp) return "";
  return f.node.empty() ? find_section(kSections, f) : find_section(kSectionsOfNodes, f);
}

}  // namespace torchnan
