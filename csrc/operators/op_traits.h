// What an operator's name says about it that its schema does not. Data only; a new fact is a new line in the
// .cpp. Names are without namespace and overload.
#pragma once

#include <cstddef>
#include <string_view>

namespace torchnan {

// Gives out memory that nobody has written: what is in it says nothing.
bool returns_uninitialized(std::string_view op);

// Of those, the ones that give out memory nobody had: empty and its kin, resize_; but not set_.
bool returns_allocation(std::string_view op);

// In place, and the old values of the tensor written to play no part: copy_, fill_, normal_.
bool overwrites_fully(std::string_view op);

// Hands values on as they are: clone, cat, index. Computes nothing.
bool is_data_movement(std::string_view op);

// Hands a tensor on as it is, or writes over it: nobody has read what is in it yet. Fewer than the above: who
// stacks a batch or looks up a row has read it.
bool is_passthrough(std::string_view op);

// Of the arithmetic ones, where an Inf of this sign in an argument disappears: exp(-inf) is 0.
bool absorbs_negative_infinity(std::string_view op);

// Looks at values without computing with them: isnan, lt, torchnan's own measure.
bool is_comparison(std::string_view op);

// addmm and its kin: elementwise in their first argument.
bool is_elementwise_in_self(std::string_view op);

// MutatedArgument to though the schema does not say so: the running statistics of batch normalisation.
bool mutates_undeclared_argument(std::string_view op, std::string_view argument);

// Of its outputs one that is no result, but kept for its backward pass: ctc_loss's table of log-probabilities.
bool is_saved_for_backward(std::string_view op, size_t output);

// NaN for what is below zero: a finite result says that nothing was.
bool proves_nonnegative_input(std::string_view op);

// A value written in the program: torch.tensor(...), full(...), masks.
bool is_constant_factory(std::string_view op);

// A view whose backward pass computes (a sum, a scatter), so that its call site is worth knowing.
bool is_view_with_arithmetic_backward(std::string_view op);

// Hands a value to the program that runs: item().
bool reads_scalar_to_host(std::string_view op);

// GradScaler's test: it deals with what it finds.
bool is_grad_scaler_check(std::string_view op);

// What it writes at a place of a list depends on what lists hold at that place alone.
bool is_foreach_elementwise(std::string_view op);

// Returns before its result is written.
bool is_async_collective(std::string_view ns, std::string_view op);

}  // namespace torchnan
