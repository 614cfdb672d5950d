// The evidence for a call on the host with a non-finite result, from memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <c10/util/SmallVector.h>

#include "origin/attribution.h"
#include "origin/evidence.h"

namespace torchnan {

class HostEvidence final : public Evidence {
 public:
  // Appends the bad arguments that were not already known before the call to `bad_arguments`.
  HostEvidence(const CallContext& call, c10::SmallVectorImpl<BadArgument>& bad_arguments);

  // Selects the next result to be attributed.
  void select(const Result& result);

  const OpPlan& plan() const override { return call_.plan; }
  const Site& site() override;
  bool has_all_kinds() const override { return true; }
  c10::ArrayRef<Argument> arguments() const override { return arguments_; }
  NonfiniteKinds constants() const override { return constants_; }
  std::optional<ElementAttribution> attribute_elements(NonfiniteKinds kinds) override;
  bool has_own_elements(NonfiniteKinds kinds) override;
  std::shared_ptr<OriginRecord> new_origin(NonfiniteKinds kinds) override;
  std::shared_ptr<OriginRecord> new_origin_without_arguments(NonfiniteKinds kinds) override;
  void record_first_use(size_t argument, OriginRecord& origin) override;

 private:
  void count_overwritten(std::vector<InputSummary>& inputs) const;
  bool writes_nan() const { return constants_.nan() && call_.plan.is_data_movement; }
  bool computes_with_nan() const { return constants_.nan() && !call_.plan.is_data_movement; }
  bool needs_elementwise_attribution(NonfiniteKinds kinds) const;
  bool is_elementwise() const;
  bool has_more_than_was_given() const;
  bool is_step_with_number();
  void find_external_arguments();
  NonfiniteRegistry::ProvenancePtr pending_provenance(const at::Tensor& source) const;
  bool is_written_number(const BadArgument& argument) const;
  bool is_known(const at::Tensor& tensor) const;

  const CallContext& call_;
  c10::SmallVectorImpl<BadArgument>& bad_arguments_;
  int64_t list_size_ = 1;
  NonfiniteKinds constants_;            // for the selected result
  std::shared_ptr<OriginRecord> made_;  // shared by all outputs
  std::optional<Site> site_;

  const Result* result_ = nullptr;                    // the selected result
  c10::SmallVector<const BadArgument*, 4> relevant_;  // the bad arguments that it depends on
  c10::SmallVector<Argument, 4> arguments_;           // the same, as evidence
  NonfiniteKinds inherited_;                          // kinds from them
};

}  // namespace torchnan
