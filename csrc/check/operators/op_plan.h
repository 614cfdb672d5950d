// The operator plan: how to handle one operator. Computed once from its schema, then only read.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include "check/bounds/rules.h"
#include "check/operators/op_traits.h"

namespace torchnan {

struct OpPlan {
  static constexpr size_t kMaxPlans = 1 << 13;  // PyTorch has 3,500 operators

  enum class Handling : uint8_t {
    kDecompose,       // composite: its parts are intercepted on their own
    kPass,            // a view or a query of metadata: nothing is computed
    kRecordCallSite,  // a view too, but its call site is worth recording
    kAllocate,        // returns unwritten memory
    kRead,            // returns a value to user code
    kCheck,           // computes: its results are checked
  };

  // A tensor argument that the call writes.
  struct MutatedArgument {
    uint16_t saved_index;       // its index in saved_arguments
    bool reads_previous_value;  // false for out= and copy_
    bool returned;              // also one of the returns
  };

  // A tensor argument that a collective reads or writes, on this rank or on another.
  struct CollectiveArgument {
    uint16_t saved_index;
    bool reads;
    bool writes;
  };

  Handling handling = Handling::kCheck;
  std::string name;      // "aten::add"
  std::string overload;  // "Tensor"
  int index = -1;        // among all plans; -1 for one beyond the table
  uint16_t arguments = 0;
  uint16_t returns = 0;
  uint16_t out_arguments = 0;  // the last ones in the schema

  c10::SmallVector<uint16_t, 6>
      saved_arguments;  // tensors, tensor lists, numbers: kept until the call has been checked
  c10::SmallVector<uint16_t, 4> checked_returns;  // newly made, or a mutated argument
  c10::SmallVector<MutatedArgument, 4> mutated_arguments;
  c10::SmallVector<std::string, 6> argument_names;

  bool returns_allocation = false;  // with kAllocate: the memory is that of a new tensor
  bool is_data_movement = false;
  bool is_passthrough = false;  // which does not count as a use of the values
  bool absorbs_negative_infinity = false;
  bool is_comparison = false;
  bool is_ordering = false;
  bool looks_for_nan = false;
  bool selects_by_mask = false;
  bool is_reduction = false;
  bool updates_statistics = false;  // the running mean and variance of a batch norm
  bool draws_random_numbers = false;
  bool is_constant_factory = false;
  bool reads_metadata_of_first = false;
  bool returns_info = false;  // an error code beside its results, which the caller checks
  bool is_grad_scaler_check = false;
  bool is_async_collective = false;
  bool pointwise = false;
  bool elementwise_in_self = false;
  bool is_foreach_elementwise = false;  // the result at an index depends only on that index of its lists

  RuleOfOperator bounds;
  bool proves_nonnegative_input = false;

  bool writes_arguments_only = false;  // its only results are arguments that the schema declares as mutated
  bool has_unwritten_output = false;   // its second one, which a collective will write
  bool writes_groups_alone = false;    // its result has memory past the last of its groups
  bool asserts_finite = false;         // a NaN ends the work of the device
  CollectiveTraits collective;
  c10::SmallVector<CollectiveArgument, 2> collective_arguments;

  bool writes_in_place() const { return !mutated_arguments.empty(); }

  // Whether PyTorch may increase the versions of what this call writes after the call has returned.
  bool may_await_versions() const {
    return writes_arguments_only &&
           c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::ADInplaceOrView);
  }

  // Returns how the call writes the saved argument with this index; null if it does not.
  const MutatedArgument* mutated_argument_at(size_t saved_index) const {
    for (const MutatedArgument& one : mutated_arguments) {
      if (one.saved_index == saved_index) return &one;
    }
    return nullptr;
  }

  // The same by its index in the schema.
  const MutatedArgument* mutated_schema_argument(size_t argument) const {
    for (const MutatedArgument& one : mutated_arguments) {
      if (saved_arguments[one.saved_index] == argument) return &one;
    }
    return nullptr;
  }

  // Whether a collective writes the argument with this index. The schema of a collective does not declare it.
  bool is_written_by_collective(size_t argument) const {
    for (const CollectiveArgument& one : collective_arguments) {
      if (saved_arguments[one.saved_index] == argument)
        return one.writes && mutated_argument_at(one.saved_index) == nullptr;
    }
    return false;
  }
};

OpPlan make_plan(const c10::OperatorHandle& op);

// Returns the plan of an operator, which lives as long as the process. Takes no lock once it is made. An operator that
// is registered anew under an old name gets a new plan.
const OpPlan& plan_of(const c10::OperatorHandle& op);

// Makes the next call of the operators with this name, overloads and in-place forms, compute a new plan.
void invalidate_plans(std::string_view name);

}  // namespace torchnan
