// A finding: one reported fact about a non-finite value, as contained in the log, the report and the exception.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torchnan/export.h>

namespace torchnan {

// An error did harm; a warning is about a value that was never used; a note is for information.
enum class Level { kError, kWarning, kNote };

// The kind of value that the origin made first. An output that holds both counts as NaN. So does an Inf which a later
// operation of the same backward node turns into a NaN, as 0 * Inf: the node's result was never an Inf.
enum class Kind { kNaN, kInf };

// Where the value came from.
enum class Origin {
  kOp,         // an operation made it from finite inputs
  kInput,      // it came with external data, which no checked operation has written
  kParameter,  // a parameter of a module held it
  kBuffer,     // a buffer of a module held it
  kUninit,     // memory that an empty() allocated and nothing wrote
  kForeign,    // written outside the dispatcher: NumPy view, Triton kernel, C extension
  kCompiled,   // inside a compiled region that could not be followed
};

enum class Phase { kForward, kBackward, kOptimizer };

// A source line. File names are as in user code.
struct Frame {
  std::string file;
  int64_t line = 0;
  std::string function;
  bool installed = false;  // the file belongs to a package that the program uses
};

// Counts of the elements of a tensor, and the range of its finite ones (absent if there are none). A number has the
// same counts as a tensor that holds it.
struct Tally {
  int64_t nan = 0;
  int64_t posinf = 0;
  int64_t neginf = 0;
  std::optional<double> min;
  std::optional<double> max;
  std::optional<double> absmax;
  int64_t zeros = 0;                // for the hint alone: not in the log
  std::optional<double> min_abs{};  // smallest that is not zero; likewise

  int64_t nonfinite() const { return nan + posinf + neginf; }
};

// One tensor argument of the operation, by its name in the schema ("self", "tensors[3]"), or one number.
struct InputSummary {
  static constexpr const char* kNumber = "number";

  std::string name;
  std::string dtype;  // kNumber for a number, which has no shape
  std::vector<int64_t> shape;
  Tally tally;
  bool overwritten = false;  // the operation wrote over it, so there is no tally
  std::string constant;      // where user code wrote a non-finite constant into it: "train.py:12"
  // For a parameter: the largest |x| before its first optimizer step, and the number of that step. Only the hint uses
  // it.
  std::optional<double> initial_absmax{};
  int64_t initial_step = 0;
};

// One operation on the way from the origin to the harm.
struct LineageStep {
  std::string op;
  std::string file;
  int64_t line = 0;
};

// How the inside of a compiled region was replayed.
enum class Replay {
  kTraced,   // the graph that was traced made the value, operation by operation
  kLowered,  // the graph that the compiler made of it
  kFused,    // only the arithmetic of the generated code does
  kNone,     // it was not followed
};

// The compiled region that contains the origin.
struct CompiledRegion {
  std::string region;  // the function that was compiled
  std::string file;
  int64_t line = 0;
  std::string kernel;  // the first kernel of the generated code that wrote the value; empty if unknown
  Replay replay = Replay::kNone;
  std::string obstacle;  // the reason why it was not followed
};

// The kind of harm.
enum class HarmKind {
  kNone,            // a warning or a note: no harm
  kOrigin,          // when="origin": reported where it was made
  kBackward,        // backward() or grad() was called on it
  kGradient,        // the gradient of a leaf, about to be used by an optimizer
  kParameter,       // written into a parameter
  kOptimizerState,  // written into the state of an optimizer
  kRead,            // read by user code
  kGuard,           // reached a guard
  kAlive,           // still alive when detection ended
  kUnused,          // never used
};

// The name of a harmed parameter without a name begins with this, followed by its index or shape.
inline constexpr std::string_view kNamelessParameter = "parameter ";

struct Harm {
  HarmKind kind = HarmKind::kNone;
  std::string name;  // the name of the parameter, state entry or guard, if there is one
  std::string file;
  int64_t line = 0;
  std::optional<bool> applied{};  // kGradient: whether the optimizer's step was applied; absent if unknown
  std::optional<int64_t> step{};
};

struct Finding {
  static constexpr int kSchemaVersion = 1;

  Level level = Level::kError;
  Kind kind = Kind::kNaN;
  Origin origin = Origin::kOp;
  Phase phase = Phase::kForward;

  // "aten::log"; the allocating op for kUninit; for other external values the first reader, or the operator that wrote
  // the constant.
  std::string op;
  std::string overload;               // "Tensor"
  int64_t output = 0;                 // index of the output
  std::string node;                   // "LogBackward0" in the backward pass, else empty
  std::optional<std::string> module;  // dotted path, "" is the root, absent outside every module
  std::string module_type;            // "Softmax"; empty if unknown
  std::string name;                   // of the parameter or buffer
  // kInput: `op` wrote the value, as x[i] = nan does. kOp: `op` computed with infinities that the program wrote, and
  // the fields describe the tensor of these.
  bool constant = false;
  std::string collective;    // that brought an external value from another rank, "c10d::allreduce_"
  std::vector<Frame> stack;  // user code first; in the backward pass the stack of the forward call
  // In the backward pass: where Python ran the operation, in a Function's backward or in a hook. The frames of a hook
  // also come first in `stack`.
  std::vector<Frame> backward_stack;

  std::optional<int64_t> step;
  std::optional<int64_t> rank;
  uint64_t thread = 0;  // of the operating system
  std::string process;  // that made it, if it was another than the one that reports it: "DataLoader worker 1"
  std::string item;     // the index in the dataset that a DataLoader was reading: "13"
  std::string device;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t nan = 0;
  int64_t posinf = 0;
  int64_t neginf = 0;
  std::vector<int64_t> first_index;  // of the first non-finite element, in logical order

  std::vector<InputSummary> inputs;
  std::optional<CompiledRegion> compiled;
  std::vector<LineageStep> lineage;
  int64_t lineage_omitted = 0;  // steps left out before the last one
  Harm harm;
  std::string hint;  // one factual sentence, or empty
  // What the same line did it to, besides the tensor of this finding: parameters, by name.
  std::vector<std::string> others;
  int64_t others_omitted = 0;  // left out of them
  int64_t repeats = 0;         // how many more findings were equal
};

TORCHNAN_API const char* name_of(Level level);
TORCHNAN_API const char* name_of(Kind kind);
TORCHNAN_API const char* name_of(Origin origin);
TORCHNAN_API const char* name_of(Phase phase);
TORCHNAN_API const char* name_of(HarmKind kind);
TORCHNAN_API const char* name_of(Replay replay);

// Returns a clause such as "backward() was called on it (train.py:88)".
TORCHNAN_API std::string describe(const Harm& harm);

// Returns the report, which fits on one screen and holds no control characters.
TORCHNAN_API std::string to_text(const Finding& finding);

// Returns one line of strict JSON, without the line break. Non-finite numbers are strings. The line is shorter than 16
// KiB: if necessary, names lose their middle ("...") and lists their end.
TORCHNAN_API std::string to_json(const Finding& finding);

// Reads such a line: to_json() of the result is the line again. Throws std::invalid_argument for a line that to_json()
// of this schema version does not write: longer than 1 MiB, not UTF-8, or with a missing, unknown or repeated entry.
// The message names the field, the expected value and the actual one.
TORCHNAN_API Finding finding_from_json(std::string_view line);

}  // namespace torchnan
