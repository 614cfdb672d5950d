// The evidence for one operation with a non-finite result: on the host from memory, on a device from its journal.
#pragma once

#include <memory>
#include <optional>

#include <c10/util/ArrayRef.h>

#include "base/runtime.h"
#include "check/operators/op_plan.h"
#include "origin/elementwise_attribution.h"
#include "origin/provenance.h"
#include "check/scan/nonfinite_kinds.h"

namespace torchnan {

class Evidence {
 public:
  // An argument that is not finite.
  struct Argument {
    NonfiniteKinds kinds;
    std::shared_ptr<const Provenance> provenance;
  };

  virtual const OpPlan& plan() const = 0;
  virtual const Site& site() = 0;

  // Whether all kinds of a tensor are known, and not only its largest magnitude, in which a NaN may hide an Inf, and an
  // Inf has no sign.
  virtual bool has_all_kinds() const = 0;

  // The arguments that the result depends on.
  virtual c10::ArrayRef<Argument> arguments() const = 0;

  // The kinds among the numbers that were passed.
  virtual NonfiniteKinds constants() const = 0;

  // Attributes each bad element to arguments, in the order of arguments(); nothing if that is impossible or useless.
  virtual std::optional<ElementAttribution> attribute_elements(NonfiniteKinds kinds) = 0;

  // Whether the operation has made non-finite elements of finite ones, beside those that came from the arguments.
  virtual bool has_own_elements(NonfiniteKinds kinds) = 0;

  // Returns the origin of values that none of the arguments explains.
  virtual std::shared_ptr<OriginRecord> new_origin(NonfiniteKinds kinds) = 0;

  // The same if no argument is bad: the operation may only have written a number.
  virtual std::shared_ptr<OriginRecord> new_origin_without_arguments(NonfiniteKinds kinds) = 0;

  // Records that the operation may be the first to compute with values of arguments()[argument] that no operation made.
  virtual void record_first_use(size_t argument, OriginRecord& origin) = 0;

 protected:
  ~Evidence() = default;
};

// Decides whether the operation is the origin of a result with values of these kinds, or which of its arguments is, and
// returns the provenance of the result.
std::shared_ptr<const Provenance> attribute(Evidence& evidence, NonfiniteKinds kinds);

}  // namespace torchnan
