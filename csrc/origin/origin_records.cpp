#include "origin/origin_records.h"

#include <atomic>

#include <fmt/format.h>
#include <torch/csrc/autograd/node.h>

#include "scan/tensor_scan.h"
#include "bounds/bound_cache.h"
#include "origin/host_queries.h"
#include "origin/make_finding.h"
#include "call_sites/current_call_site.h"
#include "process/fork_safe_mutex.h"

namespace torchnan {
namespace {

std::atomic<uint64_t> next_sequence{1};
std::atomic<uint64_t> first_of_process{1};
const AtForkChild begin_here([] { first_of_process = next_sequence.load(); });

void tell_tensor(const at::Tensor& tensor, const TensorStats& census, Finding& facts) {
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
TensorStats census_of_constant(const at::Tensor& tensor) {
  const Counts counts = counts_of(tensor);
  if (counts.nan > 0) return compute_stats(tensor);  // data more likely
  TensorStats census;
  census.tally.posinf = counts.posinf;
  census.tally.neginf = counts.neginf;
  return census;
}

std::shared_ptr<OriginRecord> make_root(const CallContext& call, OriginRecord::Source source,
                                        const at::Tensor& tensor) {
  auto root = new_root(source, call.plan, current_call_site(call.session, call.thread), call.session);
  root->scalar = tensor.dim() == 0;
  const TensorStats census =
      source == OriginRecord::Source::kConstant ? census_of_constant(tensor) : compute_stats(tensor);
  root->kinds = census.kinds();
  root->facts.kind = dominant_kind(root->kinds);
  tell_tensor(tensor, census, root->facts);
  return root;
}

// What a compiled graph computes passes no dispatcher; its results say who made them.
bool is_from_compiled_graph(const at::Tensor& tensor) {
  const auto node = tensor.requires_grad() ? tensor.grad_fn() : nullptr;
  return node != nullptr && node->name().rfind("CompiledFunction", 0) == 0;
}

// Where the constants among the arguments were written.
void tell_constants(const CallContext& call, Finding& facts) {
  const std::vector<TensorArgument> arguments = tensor_arguments(call);
  for (size_t i = 0; i < facts.inputs.size(); ++i) {
    const at::Tensor tensor = scannable_values(arguments[i].tensor);
    if (!tensor.defined() || !nonfinite_registry().knows(tensor)) continue;
    const auto record = nonfinite_registry().find(tensor);
    if (record == nullptr || record->first().root->source != OriginRecord::Source::kConstant) continue;
    const Frame frame = frame_of(record->first().root->site.live, call.session);
    if (!frame.file.empty()) facts.inputs[i].constant = fmt::format("{}:{}", frame.file, frame.line);
  }
}

// That has brought the argument from another rank. gloo's end by copying from memory of their own to where the result
// is awaited.
const std::string* collective_of(const CallContext& call, const at::Tensor& argument) {
  if (const std::string* collective = bound_cache().pending_collective(argument)) return collective;
  const at::Tensor target = copy_destination(call);
  return target.defined() ? bound_cache().pending_collective(target) : nullptr;
}

}  // namespace

void mark_factor(OriginRecord& root, uint64_t node_execution_id, const OpPlan& plan, NonfiniteKinds kinds) {
  const bool same_run = root.site.node_execution_id != 0 && root.site.node_execution_id == node_execution_id;
  if (same_run && plan.pointwise && kinds.nan() && !root.kinds.nan()) root.facts.kind = Kind::kNaN;
}

Kind dominant_kind(NonfiniteKinds kinds) { return kinds.nan() ? Kind::kNaN : Kind::kInf; }

std::shared_ptr<OriginRecord> new_root(OriginRecord::Source source, const OpPlan& plan, Site site,
                                       DetectionSession& session) {
  auto root = std::make_shared<OriginRecord>();
  root->sequence = next_sequence++;
  root->source = source;
  root->site = std::move(site);
  root->session = session.weak_from_this();
  root->facts.op = plan.name;
  root->facts.overload = plan.overload;
  return root;
}

bool is_inherited(const OriginRecord& root) { return root.sequence < first_of_process; }

std::optional<Owner> owner_of(const at::Tensor& tensor, bool search_all_modules, const DetectionSession& session) {
  return owner_of(tensor.storage().unsafeGetStorageImpl(), host_runtime().current_stack_id(), search_all_modules,
                  session);
}

std::optional<Owner> owner_of(const c10::StorageImpl* storage, SiteId use, bool search_all_modules,
                              const DetectionSession& session) {
  if (auto named = session.named_owner(storage)) return named;
  return query_owner(storage, use, search_all_modules, session);
}

std::shared_ptr<OriginRecord> operation_root(const CallContext& call, const at::Tensor& result, int64_t output,
                                             NonfiniteKinds kinds) {
  auto root = make_root(call, OriginRecord::Source::kOperation, result);
  root->kinds = kinds;
  root->facts.kind = dominant_kind(kinds);
  root->facts.output = output;
  root->facts.inputs = summarise_inputs(call);
  tell_constants(call, root->facts);
  fill_location(root->site, call.session, root->facts);
  root->excused = ask_is_loss_scaling(root->site, call.session);
  return root;
}

std::shared_ptr<OriginRecord> constant_root(const CallContext& call, const at::Tensor& result) {
  return make_root(call, OriginRecord::Source::kConstant, result);
}

std::shared_ptr<OriginRecord> external_root(const CallContext& call, const at::Tensor& argument, NonfiniteKinds kinds) {
  auto root = make_root(call, OriginRecord::Source::kExternal, argument);
  root->kinds = kinds;
  fill_location(root->site, call.session, root->facts);
  const BoundCache::Entry note = bound_cache().find(argument);
  const bool was_finite = note.state == BoundCache::State::kFinite || note.state == BoundCache::State::kStale;
  root->foreign = was_finite || is_from_compiled_graph(argument);
  root->excused = note.state == BoundCache::State::kIgnored;
  root->parameter = is_parameter(argument);
  if (root->parameter || kinds.nan()) root->owner = owner_of(argument, root->parameter, call.session);
  if (note.state == BoundCache::State::kUninitialized) {
    root->unwritten = true;
    root->allocation.live = note.site;
    root->allocator = *note.op;
  }
  if (const std::string* collective = collective_of(call, argument)) root->collective = *collective;
  return root;
}

bool is_constant_write(const Provenance& record) {
  const Cause& cause = record.first();
  return cause.root->source != OriginRecord::Source::kOperation && !cause.first_computation &&
         cause.root->entry() == nullptr;
}

NonfiniteRegistry::ProvenancePtr record_of_argument(const CallContext& call, const at::Tensor& argument,
                                                    NonfiniteKinds kinds) {
  const auto known = nonfinite_registry().find(argument);
  if (known != nullptr && !(is_constant_write(*known) && is_parameter(argument))) return known;
  const bool is_number = argument.unsafeGetTensorImpl()->is_wrapped_number();  // of the program's: x * inf
  auto root = is_number ? constant_root(call, argument) : external_root(call, argument, kinds);
  auto record = std::make_shared<Provenance>(Cause{std::move(root), kinds});
  if (!is_number) nonfinite_registry().remember(argument, record);
  return record;
}

void record_first_use(OriginRecord& root, const OpPlan& plan, const Site& site, const DetectionSession& session,
                      c10::function_ref<std::optional<Owner>()> owner_of_argument) {
  if (plan.is_passthrough || root.entry() != nullptr) return;
  Entry entry;
  entry.facts.op = plan.name;
  entry.facts.overload = plan.overload;
  entry.facts.step = site.step;
  fill_location(site, session, entry.facts);
  entry.owner = owner_of_argument();
  if (!entry.owner) entry.owner = root.owner;
  root.enter(std::move(entry));
}

}  // namespace torchnan
