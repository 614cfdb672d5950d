#include "origin/roots.h"

#include <atomic>

#include <fmt/format.h>
#include <torch/csrc/autograd/node.h>

#include "check/tensor_check.h"
#include "bounds/ledger.h"
#include "origin/ask.h"
#include "origin/make_finding.h"
#include "origin/site_here.h"
#include "process/fork.h"

namespace torchnan {
namespace {

std::atomic<uint64_t> next_sequence{1};
std::atomic<uint64_t> first_of_process{1};
const InChild begin_here([] { first_of_process = next_sequence.load(); });

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

// Masks are made all the time: what is told of one costs no more than counting.
Census census_of_constant(const at::Tensor& tensor) {
  const Counts counts = counts_of(tensor);
  if (counts.nan > 0) return take_census(tensor);  // data more likely
  Census census;
  census.tally.posinf = counts.posinf;
  census.tally.neginf = counts.neginf;
  return census;
}

std::shared_ptr<Root> make_root(const CallFacts& call, Root::Source source, const at::Tensor& tensor) {
  auto root = new_root(source, call.plan, site_here(call.watch, call.thread), call.watch);
  root->scalar = tensor.dim() == 0;
  const Census census = source == Root::Source::kConstant ? census_of_constant(tensor) : take_census(tensor);
  root->kinds = census.kinds();
  root->facts.kind = worst(root->kinds);
  tell_tensor(tensor, census, root->facts);
  return root;
}

// What a compiled graph computes passes no dispatcher; its results say who made them.
bool is_from_compiled_graph(const at::Tensor& tensor) {
  const auto node = tensor.requires_grad() ? tensor.grad_fn() : nullptr;
  return node != nullptr && node->name().rfind("CompiledFunction", 0) == 0;
}

// Where the constants among the arguments were written.
void tell_constants(const CallFacts& call, Finding& facts) {
  const std::vector<TensorArgument> arguments = tensor_arguments(call);
  for (size_t i = 0; i < facts.inputs.size(); ++i) {
    const at::Tensor tensor = readable(arguments[i].tensor);
    if (!tensor.defined() || !lineage().knows(tensor)) continue;
    const auto record = lineage().find(tensor);
    if (record == nullptr || record->first().root->source != Root::Source::kConstant) continue;
    const Frame frame = frame_of(record->first().root->site.live, call.watch);
    if (!frame.file.empty()) facts.inputs[i].constant = fmt::format("{}:{}", frame.file, frame.line);
  }
}

// That has brought the argument from another rank. gloo's end by copying from memory of their own to where the result
// is awaited.
const OpPlan* collective_of(const CallFacts& call, const at::Tensor& argument) {
  if (const OpPlan* collective = ledger().brought_by(argument)) return collective;
  const at::Tensor target = target_of_move(call);
  return target.defined() ? ledger().brought_by(target) : nullptr;
}

}  // namespace

void judge_factor(Root& root, uint64_t node_run, const OpPlan& plan, Kinds kinds) {
  const bool same_run = root.site.node_run != 0 && root.site.node_run == node_run;
  if (same_run && plan.pointwise && kinds.nan() && !root.kinds.nan()) root.facts.kind = Kind::kNaN;
}

Kind worst(Kinds kinds) { return kinds.nan() ? Kind::kNaN : Kind::kInf; }

std::shared_ptr<Root> new_root(Root::Source source, const OpPlan& plan, Site site, Watch& watch) {
  auto root = std::make_shared<Root>();
  root->sequence = next_sequence++;
  root->source = source;
  root->site = std::move(site);
  root->watch = watch.weak_from_this();
  root->facts.op = plan.name;
  root->facts.overload = plan.overload;
  return root;
}

bool is_inherited(const Root& root) { return root.sequence < first_of_process; }

std::optional<Owner> owner_of(const at::Tensor& tensor, bool everywhere, const Watch& watch) {
  return owner_of(tensor.storage().unsafeGetStorageImpl(), program().capture(), everywhere, watch);
}

std::optional<Owner> owner_of(const c10::StorageImpl* storage, SiteId use, bool everywhere, const Watch& watch) {
  if (auto named = watch.named_owner(storage)) return named;
  return ask_owner(storage, use, everywhere, watch);
}

std::shared_ptr<Root> operation_root(const CallFacts& call, const at::Tensor& result, int64_t output, Kinds kinds) {
  auto root = make_root(call, Root::Source::kOperation, result);
  root->kinds = kinds;
  root->facts.kind = worst(kinds);
  root->facts.output = output;
  root->facts.inputs = summarise_inputs(call);
  tell_constants(call, root->facts);
  tell_place(root->site, call.watch, root->facts);
  root->excused = ask_is_loss_scaling(root->site, call.watch);
  return root;
}

std::shared_ptr<Root> constant_root(const CallFacts& call, const at::Tensor& result) {
  return make_root(call, Root::Source::kConstant, result);
}

std::shared_ptr<Root> external_root(const CallFacts& call, const at::Tensor& argument, Kinds kinds) {
  auto root = make_root(call, Root::Source::kExternal, argument);
  root->kinds = kinds;
  tell_place(root->site, call.watch, root->facts);
  const Ledger::Note note = ledger().find(argument);
  const bool was_finite = note.known == Ledger::Known::kFinite || note.known == Ledger::Known::kWasFinite;
  root->foreign = was_finite || is_from_compiled_graph(argument);
  root->excused = note.known == Ledger::Known::kNotJudged;
  root->parameter = is_parameter(argument);
  if (root->parameter || kinds.nan()) root->owner = owner_of(argument, root->parameter, call.watch);
  if (note.known == Ledger::Known::kUnwritten) {
    root->unwritten = true;
    root->allocation.live = note.site;
    root->allocator = note.maker->name;
  }
  if (const OpPlan* collective = collective_of(call, argument)) root->collective = collective->name;
  return root;
}

bool is_only_put_there(const Record& record) {
  const Cause& cause = record.first();
  return cause.root->source != Root::Source::kOperation && !cause.first_computation && cause.root->entry() == nullptr;
}

Lineage::RecordPtr record_of_argument(const CallFacts& call, const at::Tensor& argument, Kinds kinds) {
  const auto known = lineage().find(argument);
  if (known != nullptr && !(is_only_put_there(*known) && is_parameter(argument))) return known;
  const bool is_number = argument.unsafeGetTensorImpl()->is_wrapped_number();  // of the program's: x * inf
  auto root = is_number ? constant_root(call, argument) : external_root(call, argument, kinds);
  auto record = std::make_shared<Record>(Cause{std::move(root), kinds});
  if (!is_number) lineage().remember(argument, record);
  return record;
}

void note_entry(const CallFacts& call, const at::Tensor& argument, Root& root) {
  if (call.plan.hands_on || root.entry() != nullptr) return;
  const Site site = site_here(call.watch, call.thread);
  Entry entry;
  entry.facts.op = call.plan.name;
  entry.facts.overload = call.plan.overload;
  entry.facts.step = site.step;
  tell_place(site, call.watch, entry.facts);
  entry.owner = owner_of(argument, is_parameter(argument), call.watch);
  if (!entry.owner) entry.owner = root.owner;
  root.enter(std::move(entry));
}

}  // namespace torchnan
