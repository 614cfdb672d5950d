// Facts about an operator that its schema does not state, by its name. Data only; a new fact is a new line in the .cpp.
// Names are without namespace and overload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <torchnan/export.h>

namespace torchnan {

// Whether operators of this namespace are those of PyTorch, or of torchnan. Those of user code have no other traits.
bool is_namespace_of_pytorch(std::string_view ns);

// Whether its result is uninitialized memory.
bool returns_uninitialized(std::string_view op);

// Whether that memory is newly allocated: empty and its variants, resize_; but not set_.
bool returns_allocation(std::string_view op);

// Whether it only returns such memory: empty and its variants.
TORCHNAN_API bool allocates(std::string_view op);

// Whether it works in place without reading the previous values: copy_, fill_, normal_.
bool overwrites_fully(std::string_view op);

// Whether it takes the shape and dtype of its first argument alone: zeros_like, new_full, full_like.
bool reads_metadata_of_first(std::string_view op);

// Whether it moves values without computing: clone, cat, index.
bool is_data_movement(std::string_view op);

// Whether it copies or overwrites a whole tensor, which does not count as a use of its values. Fewer than the above:
// stacking a batch or looking up a row is a use.
bool is_passthrough(std::string_view op);

// Whether a -Inf in its argument disappears: exp(-inf) is 0.
bool absorbs_negative_infinity(std::string_view op);

// Whether it compares values without computing with them: isnan, lt, torchnan's own measure.
TORCHNAN_API bool is_comparison(std::string_view op);

// Whether it is an ordered comparison, which is false for a NaN whatever value it replaced: lt, ge.
bool is_ordering(std::string_view op);

// Whether its integers and booleans are correct if an argument is NaN: isnan, count_nonzero, unique.
bool looks_for_nan(std::string_view op);

// Whether it takes a mask that says which elements to use: where, masked_fill, x[mask].
bool selects_by_mask(std::string_view op);

// Whether it may make a finite number from a NaN, which then is as wrong as an integer computed from one. Not for those
// that are meant to remove a NaN: nan_to_num, nansum, fmax.
bool hides_nan(std::string_view op);

// Whether it reduces many numbers to one, or orders them: sum, mean, sort.
bool is_reduction(std::string_view op);

// Whether it is elementwise in its first argument: addmm and its relatives.
bool is_elementwise_in_self(std::string_view op);

// Whether it updates the running statistics of a batch norm.
bool updates_statistics(std::string_view op);

// Whether it writes an argument without the schema saying so: the running statistics of batch normalization.
bool mutates_undeclared_argument(std::string_view op, std::string_view argument);

// Whether an output is not a result, but saved for the backward pass: ctc_loss's table of log-probabilities.
bool is_saved_for_backward(std::string_view op, size_t output);

// Whether the old values of an argument must not be scanned: it is such an output, or a collective will write it and it
// may be uninitialized. `name` includes its namespace here and below.
bool is_unscanned_argument(std::string_view name, std::string_view argument);

// Whether an operation only receives memory that a collective will write later, like the operation before it.
bool is_unwritten_argument(std::string_view name, std::string_view argument);

// Whether an operation waits until a functional collective has written its argument.
bool waits_for_collective(std::string_view name);

// How a collective uses an argument; schemas do not declare it. A broadcast reads its tensors on one rank, and writes
// them on the others.
enum class CollectiveUse : uint8_t { kNone, kReads, kWrites, kReadsAndWrites };
CollectiveUse collective_use(std::string_view name, std::string_view argument);

// What a collective does with the tensors of the ranks.
struct CollectiveTraits {
  bool is_broadcast = false;
  bool is_reduction = false;       // a reduce-scatter, too
  bool is_reduce_scatter = false;  // each rank gets a part of the result
  bool is_gather = false;          // the result has a part from each rank
  bool lists_ranks = false;        // with is_gather: a list that it is given has a tensor for each rank
};
CollectiveTraits collective_traits(std::string_view name);

// Whether an output is memory that the collective prepared by the operation will write later.
bool is_unwritten_output(std::string_view name, size_t output);

// Whether its kernels end the work of a device if they are given a NaN.
bool asserts_finite(std::string_view name);

// Whether the result has memory past the last of its groups, which the operation does not write.
bool writes_groups_alone(std::string_view name);

// Returns the operator whose output, saved for the backward pass, is this argument of a backward operator; empty for
// others. Such an output is not checked where it is made.
std::string_view producer_of_saved_argument(std::string_view op, std::string_view argument);

// Whether an argument says which part of such an output was written: the lengths of ctc_loss's samples.
bool tells_written_part(std::string_view op, std::string_view argument);

// Whether it returns NaN for negative numbers, so that a finite result proves that there were none.
bool proves_nonnegative_input(std::string_view op);

// Whether it writes a value of user code: torch.tensor(...), full(...), masks.
bool is_constant_factory(std::string_view op);

// Whether it is a view whose backward pass computes (a sum, a scatter), so that its call site is worth recording.
bool is_view_with_arithmetic_backward(std::string_view op);

// Whether it returns a value to user code: item().
bool reads_scalar_to_host(std::string_view op);

// Whether it is GradScaler's check, which handles the values that it finds.
bool is_grad_scaler_check(std::string_view op);

// Whether its result at an index of a list depends only on its lists at that index.
bool is_foreach_elementwise(std::string_view op);

// Whether it returns before its result is written.
bool is_async_collective(std::string_view ns, std::string_view op);

}  // namespace torchnan
