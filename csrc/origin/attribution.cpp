#include "origin/attribution.h"

#include <atomic>
#include <cmath>
#include <complex>

#include <fmt/format.h>
#include <torch/csrc/autograd/node.h>

#include "check/tensor_check.h"
#include "intercept/op_plan.h"
#include "origin/harm.h"
#include "origin/ledger.h"
#include "origin/make_finding.h"
#include "origin/site_here.h"
#include "origin/unused_results.h"

namespace torchnan {
namespace {

std::atomic<uint64_t> next_sequence{1};

Kind worst(Kinds kinds) { return kinds.nan() ? Kind::kNaN : Kind::kInf; }

// As Python spells it: "float32".
std::string dtype_name(const at::Tensor& tensor) { return std::string(c10::getDtypeNames(tensor.scalar_type()).first); }

void tell_tensor(const at::Tensor& tensor, const Census& census, Finding& facts) {
  facts.device = tensor.device().str();
  facts.dtype = dtype_name(tensor);
  facts.shape = tensor.sizes().vec();
  facts.strides = tensor.strides().vec();
  facts.nan = census.tally.nan;
  facts.posinf = census.tally.posinf;
  facts.neginf = census.tally.neginf;
  facts.first_index = census.first_index;
}

std::shared_ptr<Root> make_root(const CallFacts& call, Root::Source source, const at::Tensor& tensor) {
  auto root = std::make_shared<Root>();
  root->sequence = next_sequence++;
  root->source = source;
  root->site = site_here(call.watch, call.thread);
  root->watch = call.watch.weak_from_this();
  root->storage = tensor.storage().getWeakStorageImpl();
  const Census census = take_census(tensor);
  root->kinds = census.kinds();
  root->facts.kind = worst(root->kinds);
  root->facts.op = call.plan.name;
  root->facts.overload = call.plan.overload;
  tell_tensor(tensor, census, root->facts);
  tell_place(root->site, call.watch, root->facts);
  return root;
}

// A tensor argument, or one element of a list of them.
struct TensorArgument {
  at::Tensor tensor;
  std::string name;
  bool overwritten = false;  // by this call: what it held before is gone
};

std::vector<TensorArgument> tensor_arguments(const CallFacts& call) {
  std::vector<TensorArgument> found;
  for (size_t k = 0; k < call.kept.size(); ++k) {
    const std::string& name = call.plan.argument_names[call.plan.kept_arguments[k]];
    bool overwritten = false;
    bool read = true;
    for (const OpPlan::Written& written : call.plan.written) {
      if (written.kept != k) continue;
      overwritten = true;
      read = written.reads_old_values;
    }
    if (!read) continue;
    const c10::IValue& value = call.kept[k];
    if (value.isTensor() && value.toTensor().defined()) {
      found.push_back({value.toTensor(), name, overwritten});
    } else if (value.isList()) {
      const auto elements = value.toListRef();
      for (size_t i = 0; i < elements.size(); ++i) {
        if (!elements[i].isTensor() || !elements[i].toTensor().defined()) continue;
        found.push_back({elements[i].toTensor(), fmt::format("{}[{}]", name, i), overwritten});
      }
    }
  }
  return found;
}

Kinds kinds_of_number(double x) {
  if (std::isnan(x)) return Kinds::of_nan();
  if (!std::isinf(x)) return {};
  return x > 0 ? Kinds::of_posinf() : Kinds::of_neginf();
}

// The kinds among the numbers that were passed: full(-inf), masked_fill(mask, -inf).
Kinds kinds_of_numbers(const CallFacts& call) {
  Kinds kinds;
  for (const c10::IValue& value : call.kept) {
    if (value.isDouble()) {
      kinds |= kinds_of_number(value.toDouble());
    } else if (value.isComplexDouble()) {
      const c10::complex<double> z = value.toComplexDouble();
      kinds |= kinds_of_number(z.real()) | kinds_of_number(z.imag());
    }
  }
  return kinds;
}

constexpr size_t kMaxInputsTold = 16;

std::vector<InputSummary> summarise_inputs(const CallFacts& call) {
  std::vector<InputSummary> inputs;
  for (const TensorArgument& argument : tensor_arguments(call)) {
    if (inputs.size() == kMaxInputsTold) break;
    InputSummary input;
    input.name = argument.name;
    input.dtype = dtype_name(argument.tensor);
    input.overwritten = argument.overwritten;
    const at::Tensor tensor = readable(argument.tensor);
    const at::Tensor& shaped = tensor.defined() ? tensor : argument.tensor;
    if (!shaped.is_nested()) input.shape = shaped.sizes().vec();
    if (tensor.defined() && !argument.overwritten) input.tally = take_census(tensor).tally;
    inputs.push_back(std::move(input));
  }
  return inputs;
}

// A weight is never infinite on purpose, as a mask may be.
bool is_parameter(const at::Tensor& tensor) { return tensor.requires_grad() && tensor.is_leaf(); }

// What a compiled graph computes passes no dispatcher; its results say who made them.
bool is_from_compiled_graph(const at::Tensor& tensor) {
  const auto node = tensor.requires_grad() ? tensor.grad_fn() : nullptr;
  return node != nullptr && node->name().rfind("CompiledFunction", 0) == 0;
}

// Why the results of one call are bad.
class Inquiry {
 public:
  Inquiry(const CallFacts& call, c10::SmallVectorImpl<BadArgument>& bad_arguments)
      : call_(call), bad_arguments_(bad_arguments) {
    if (!call.plan.makes_constants) find_external_arguments();
    for (const BadArgument& argument : bad_arguments_) {
      inherited_ |= argument.kinds;
      const Root& root = *argument.record->root();
      const bool outranks =
          cause_ == nullptr || (cause_->root()->deliberate() && !root.deliberate()) ||
          (cause_->root()->deliberate() == root.deliberate() && root.sequence < cause_->root()->sequence);
      if (outranks) cause_ = argument.record;
    }
    constants_ = kinds_of_numbers(call_);
  }

  Lineage::RecordPtr record_of(const Result& result) {
    const bool is_constant = call_.plan.makes_constants && cause_ == nullptr;
    if (!is_constant && is_origin_of(result.kinds)) return origin(result);
    if (cause_ != nullptr) {
      judge_factor(result.kinds);
      if (extended_ == nullptr) extended_ = cause_->extended({&call_.plan, site().live}, call_.plan.moves_values);
      return extended_;
    }
    return constant(result);
  }

 private:
  // An operation is the origin of what none of its arguments had; but where an argument was bad by accident, the
  // older accident is the cause of whatever follows.
  bool is_origin_of(Kinds kinds) const {
    if (cause_ != nullptr && !cause_->root()->deliberate()) return false;
    const Kinds given = inherited_ | constants_;
    if (!given.any()) return true;
    if (kinds.nan() && !given.nan()) return true;
    return kinds.inf() && !given.inf();
  }

  Lineage::RecordPtr origin(const Result& result) {
    if (made_ == nullptr) {
      made_ = make_root(call_, Root::Source::kOperation, result.tensor);
      made_->facts.output = result.output;
      made_->facts.inputs = summarise_inputs(call_);
      made_->excused = program().is_loss_scaling(made_->site, call_.watch);
    }
    return std::make_shared<Record>(made_);
  }

  // The formula of a node is often gradient times slope. A slope that is infinite where the gradient is zero makes a
  // NaN of it, and that is what the node makes: the slope is no gradient yet.
  void judge_factor(Kinds kinds) {
    Root& root = *cause_->root();
    const bool same_run = root.site.node_run != 0 && root.site.node_run == site().node_run;
    if (same_run && call_.plan.pointwise && kinds.nan() && !root.kinds.nan()) root.facts.kind = Kind::kNaN;
  }

  Lineage::RecordPtr constant(const Result& result) {
    auto root = make_root(call_, Root::Source::kConstant, result.tensor);
    root->scalar = result.tensor.dim() == 0;
    return std::make_shared<Record>(std::move(root));
  }

  // Bad arguments that nobody saw being made.
  void find_external_arguments() {
    for (const TensorArgument& argument : tensor_arguments(call_)) {
      if (argument.overwritten) continue;  // looked at before the call
      const at::Tensor tensor = readable(argument.tensor);
      if (!tensor.defined() || is_known(tensor)) continue;
      const Kinds kinds = kinds_of(tensor);
      if (kinds.any()) bad_arguments_.push_back({tensor, kinds, record_of_argument(call_, tensor, kinds)});
    }
  }

  bool is_known(const at::Tensor& tensor) const {
    for (const BadArgument& argument : bad_arguments_) {
      if (argument.tensor.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) return true;
    }
    return false;
  }

  const Site& site() {
    if (!site_) site_ = site_here(call_.watch, call_.thread);
    return *site_;
  }

  const CallFacts& call_;
  c10::SmallVectorImpl<BadArgument>& bad_arguments_;
  Kinds inherited_;
  Kinds constants_;
  Lineage::RecordPtr cause_;     // of the bad arguments' causes, the one to be told
  Lineage::RecordPtr extended_;  // by this call
  std::shared_ptr<Root> made_;   // shared by all its outputs
  std::optional<Site> site_;
};

}  // namespace

Lineage::RecordPtr external_record(const CallFacts& call, const at::Tensor& argument, Kinds kinds) {
  auto root = make_root(call, Root::Source::kExternal, argument);
  root->kinds = kinds;
  const Ledger::Note note = ledger().find(argument);
  root->foreign = note.known == Ledger::Known::kFinite || is_from_compiled_graph(argument);
  root->excused = note.known == Ledger::Known::kNotJudged;
  root->scalar = argument.dim() == 0;
  root->parameter = is_parameter(argument);
  if (note.known == Ledger::Known::kUnwritten) {
    root->unwritten = true;
    root->allocation.live = note.site;
    root->allocator = note.maker->name;
  }
  return std::make_shared<Record>(std::move(root));
}

Lineage::RecordPtr record_of_argument(const CallFacts& call, const at::Tensor& argument, Kinds kinds) {
  if (auto known = lineage().find(argument)) return known;
  auto record = external_record(call, argument, kinds);
  lineage().remember(argument, record);
  return record;
}

void attribute(const CallFacts& call, c10::SmallVectorImpl<BadArgument>& bad_arguments, c10::ArrayRef<Result> results) {
  Inquiry inquiry(call, bad_arguments);
  for (const BadArgument& argument : bad_arguments) argument.record->root()->used = true;
  for (const Result& result : results) {
    const Lineage::RecordPtr record = inquiry.record_of(result);
    lineage().remember(result.tensor, record);
    if (record->steps().empty() && !record->root()->deliberate()) note_unused(call.watch, record);
    judge_result(call, result, record);
  }
}

}  // namespace torchnan
