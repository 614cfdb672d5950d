#include "origin/evidence.h"

#include <utility>
#include <vector>

#include "origin/origin_records.h"

namespace torchnan {
namespace {

// The kinds that an operation can make from values of these kinds.
NonfiniteKinds possible_kinds(NonfiniteKinds given, const OpPlan& plan) {
  if (plan.is_data_movement) return given;
  return given.inf() ? NonfiniteKinds::only_nan() | NonfiniteKinds::only_inf() : given;
}

// Records which backward node has computed the values of a cause. Accumulation only passes them on; its hooks see the
// gradient.
void mark_node(Evidence& evidence, Cause& cause) {
  const Site& site = evidence.site();
  const bool accumulates = site.node == "torch::autograd::AccumulateGrad" && cause.node_execution_id != 0;
  if (site.node_execution_id != 0 && !accumulates) cause.node_execution_id = site.node_execution_id;
}

Cause new_cause(Evidence& evidence, std::shared_ptr<OriginRecord> origin, NonfiniteKinds kinds) {
  Cause cause{std::move(origin), kinds};
  mark_node(evidence, cause);
  return cause;
}

// Collects the causes of one result.
class Attribution {
 public:
  Attribution(Evidence& evidence, NonfiniteKinds kinds) : evidence_(evidence), plan_(evidence.plan()), kinds_(kinds) {
    for (const Evidence::Argument& argument : evidence.arguments()) inherited_ |= argument.kinds;
  }

  std::vector<Cause> causes() {
    const auto blame = evidence_.attribute_elements(kinds_);
    if (blame) {
      add_by_element(*blame);
    }
    if (causes_.empty()) add_all([this](size_t i) { add_possible_causes(i, kinds_); });
    if (causes_.empty()) add_all([this](size_t i) { add_causes(i, kinds_); });
    return std::move(causes_);
  }

  // Whether the arguments had values of such kinds.
  bool is_explained() const {
    const NonfiniteKinds given = inherited_ | evidence_.constants();
    if (kinds_.nan() && !given.nan()) return false;
    return !evidence_.has_all_kinds() || !kinds_.inf() || given.inf();
  }

 private:
  template <typename Add>
  void add_all(Add&& add) {
    for (size_t i = 0; i < evidence_.arguments().size(); ++i) add(i);
  }

  void add_by_element(const ElementAttribution& blame) {
    add_all([&](size_t i) {
      if (blame.inherited[i].any()) add_possible_causes(i, blame.inherited[i]);
    });
    if (blame.own.any()) causes_.push_back(new_cause(evidence_, evidence_.new_origin(blame.own), blame.own));
  }

  // Adds the causes of an argument that may have led to these kinds.
  void add_possible_causes(size_t argument, NonfiniteKinds there) {
    if (!evidence_.has_all_kinds()) return add_causes(argument, there);
    for (const Cause& cause : evidence_.arguments()[argument].provenance->causes()) {
      const NonfiniteKinds kinds = possible_kinds(cause.kinds, plan_) & there;
      if (kinds.any() && !is_absorbed(cause)) causes_.push_back(extended(argument, cause, kinds));
    }
  }

  void add_causes(size_t argument, NonfiniteKinds there) {
    for (const Cause& cause : evidence_.arguments()[argument].provenance->causes()) {
      causes_.push_back(extended(argument, cause, there));
    }
  }

  // exp(-inf) is 0, so any other cause is at fault.
  bool is_absorbed(const Cause& cause) const {
    return plan_.absorbs_negative_infinity && cause.kinds == NonfiniteKinds::only_neginf() &&
           inherited_.without(NonfiniteKinds::only_neginf()).any();
  }

  bool may_be_mask(NonfiniteKinds kinds) const {
    return evidence_.has_all_kinds() ? kinds == NonfiniteKinds::only_neginf() : !kinds.nan();
  }

  Cause extended(size_t argument, const Cause& cause, NonfiniteKinds kinds) {
    OriginRecord& origin = *cause.origin;
    mark_factor(origin, evidence_.site().node_execution_id, plan_, kinds);
    if (!plan_.is_data_movement && !may_be_mask(kinds)) origin.propagated = true;
    if (origin.source != OriginRecord::Source::kOperation && !cause.first_computation)
      evidence_.record_first_use(argument, origin);
    Cause next = cause.extended({&plan_, evidence_.site().live}, plan_.is_data_movement, kinds);
    if (next.first_nan != cause.first_nan) {  // of a backward node, with the line of its forward call
      next.first_nan = std::make_shared<const FirstNan>(FirstNan{&plan_, evidence_.site()});
    }
    mark_node(evidence_, next);
    return next;
  }

  Evidence& evidence_;
  const OpPlan& plan_;
  const NonfiniteKinds kinds_;  // of the result
  NonfiniteKinds inherited_;    // of the arguments
  std::vector<Cause> causes_;
};

}  // namespace

std::shared_ptr<const Provenance> attribute(Evidence& evidence, NonfiniteKinds kinds) {
  if (evidence.arguments().empty()) {
    return std::make_shared<Provenance>(new_cause(evidence, evidence.new_origin_without_arguments(kinds), kinds));
  }
  Attribution attribution(evidence, kinds);
  auto provenance = std::make_shared<Provenance>(attribution.causes());
  // New kinds must come from the operation itself; without new kinds, all bad arguments are at fault.
  if (!provenance->is_intentional()) return provenance;
  if (attribution.is_explained() && !evidence.has_own_elements(kinds)) return provenance;
  return std::make_shared<Provenance>(new_cause(evidence, evidence.new_origin(kinds), kinds));
}

}  // namespace torchnan
