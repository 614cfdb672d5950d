// The table of options: their names, what they mean and what they accept. Python, the environment, the command line and
// docs/options.md read it through torchnan._C.option_table(). The defaults are those of the fields of Options.
// `callback` has no row: in Python it is a callable action.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torchnan/export.h>
#include <torchnan/options.h>

namespace torchnan {

struct OptionRow {
  const char* name;          // of the field, and of the keyword of torchnan.detect()
  const char* meaning;       // in reStructuredText, without full stop
  int64_t minimum = 0;       // of an integer
  const char* integer = "";  // what an integer stands for, in words; empty: its minimum says it
};

// Calls visit(row, field) for each field.
template <typename O, typename Visitor>
void for_each_option(O& options, Visitor&& visit) {
  visit(OptionRow{"action",
                  "what a finding of level ``\"error\"`` does once it is in the log of the session: ``\"raise\"`` a "
                  ":class:`torchnan.NonFiniteError`, ``\"warn\"`` once per origin, ``\"log\"`` nothing more, "
                  "``\"breakpoint\"`` opens the debugger in the user's frame (with ``when=\"origin\"`` where the value "
                  "was made). In Python also a callable that is given the :class:`Finding`"},
        options.action);
  visit(OptionRow{"check_nan", "report NaN"}, options.check_nan);
  visit(OptionRow{"check_inf", "report infinities"}, options.check_inf);
  visit(OptionRow{"when",
                  "``\"harm\"`` reports a value where it does harm, so that values that user code repairs or never "
                  "uses stay silent; ``\"origin\"`` reports it at once, at the operation that made it, which suits a "
                  "debugger"},
        options.when);
  visit(OptionRow{"backward", "check the backward pass"}, options.backward);
  visit(OptionRow{"stacks", "record forward call sites, so that a finding in the backward pass has a source line"},
        options.stacks);
  visit(OptionRow{"skip_ops",
                  "operators that are never checked: names or globs, such as ``(\"aten::log\", \"_foreach_*\")``"},
        options.skip_ops);
  visit(
      OptionRow{"rescan_every",
                "``N`` also scans results that are proved finite: each once in ``N`` steps, in turn, and all of the "
                "first step. A result that is tested out of turn, because it is the first of its operator so close to "
                "the limit of its dtype, misses its next turn. This finds a wrong proof, faulty memory, and code that "
                "writes into tensors where PyTorch cannot see it. 1 scans every result, 0 none that is proved",
                0, "0, or a number of steps"},
      options.rescan_every);
  visit(OptionRow{"headroom", "record the largest magnitude of each module's results, for :meth:`headroom`"},
        options.headroom);
  visit(OptionRow{"max_findings", "how many findings are kept; further ones are only counted", 1},
        options.max_findings);
  visit(OptionRow{"max_copied_bytes",
                  "how many bytes of arguments that a compiled region overwrites are copied before a call, so that the "
                  "call can be replayed; the same holds for values that its collectives bring. A call that needs more "
                  "is reported at its border. On a GPU, also how many bytes of inputs are kept after the calls of "
                  "regions"},
        options.max_copied_bytes);
  visit(OptionRow{"max_preserved_bytes",
                  "on a GPU, how many bytes are reserved for copies of the inputs of compiled regions, weights first. "
                  "They are copied before the program overwrites them, and only if the device has found a value by "
                  "then: the call that made it can still be replayed. Until then the memory is not used"},
        options.max_preserved_bytes);
  visit(OptionRow{"max_explanation_seconds",
                  "how long torchnan may look for the origin of a value that a call of a compiled region has made. "
                  "After that the finding names the region and says so, and later calls of the region in this session "
                  "are named by it, too. 0 never looks",
                  0, "0, or a number of seconds"},
        options.max_explanation_seconds);
  visit(
      OptionRow{"log",
                "path of a file to which the log of the session, ``findings``, is written as well: one line of strict "
                "JSON per finding, readable by its owner only"},
      options.log);
}

// What an option accepts.
struct Accepted {
  std::string values;              // in words: the values in Python
  std::string texts;               // in words: in the environment and on the command line
  std::vector<std::string> names;  // of an enumeration: its names
};

TORCHNAN_API Accepted accepted(const OptionRow& row, Action);
TORCHNAN_API Accepted accepted(const OptionRow& row, When);
TORCHNAN_API Accepted accepted(const OptionRow& row, bool);
TORCHNAN_API Accepted accepted(const OptionRow& row, int64_t);
TORCHNAN_API Accepted accepted(const OptionRow& row, const std::vector<std::string>&);
TORCHNAN_API Accepted accepted(const OptionRow& row, const std::string&);

// Returns one message for each contradiction among options that are valid one by one.
TORCHNAN_API std::vector<std::string> contradictions(const Options& options);

}  // namespace torchnan
