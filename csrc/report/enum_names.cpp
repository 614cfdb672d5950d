// The names of the values of every enumeration, in the report, the log and Python; empty for unknown numbers.
#include <torchnan/finding.h>
#include <torchnan/options.h>

namespace torchnan {

const char* name_of(Level level) {
  switch (level) {
    case Level::kError:
      return "error";
    case Level::kWarning:
      return "warning";
    case Level::kNote:
      return "note";
  }
  return "";
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kNaN:
      return "nan";
    case Kind::kInf:
      return "inf";
  }
  return "";
}

const char* name_of(Origin origin) {
  switch (origin) {
    case Origin::kOp:
      return "op";
    case Origin::kInput:
      return "input";
    case Origin::kParameter:
      return "parameter";
    case Origin::kBuffer:
      return "buffer";
    case Origin::kUninit:
      return "uninit";
    case Origin::kForeign:
      return "foreign";
    case Origin::kCompiled:
      return "compiled";
  }
  return "";
}

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizer:
      return "optimizer";
  }
  return "";
}

const char* name_of(Replay replay) {
  switch (replay) {
    case Replay::kTraced:
      return "traced";
    case Replay::kLowered:
      return "lowered";
    case Replay::kFused:
      return "fused";
    case Replay::kNone:
      return "none";
  }
  return "";
}

const char* name_of(HarmKind kind) {
  switch (kind) {
    case HarmKind::kNone:
      return "none";
    case HarmKind::kOrigin:
      return "origin";
    case HarmKind::kBackward:
      return "backward";
    case HarmKind::kGradient:
      return "gradient";
    case HarmKind::kParameter:
      return "parameter";
    case HarmKind::kOptimizerState:
      return "optimizer_state";
    case HarmKind::kRead:
      return "read";
    case HarmKind::kGuard:
      return "guard";
    case HarmKind::kAlive:
      return "alive";
    case HarmKind::kUnused:
      return "unused";
  }
  return "";
}

const char* name_of(Action action) {
  switch (action) {
    case Action::kRaise:
      return "raise";
    case Action::kWarn:
      return "warn";
    case Action::kLog:
      return "log";
    case Action::kBreakpoint:
      return "breakpoint";
  }
  return "";
}

const char* name_of(When when) {
  switch (when) {
    case When::kHarm:
      return "harm";
    case When::kOrigin:
      return "origin";
  }
  return "";
}

}  // namespace torchnan
