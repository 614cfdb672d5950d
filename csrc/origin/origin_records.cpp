#include "origin/origin_records.h"

#include <algorithm>
#include <atomic>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "check/scan/tensor_scan.h"
#include "check/bounds/bound_cache.h"
#include "origin/collectives.h"
#include "origin/runtime_queries.h"
#include "origin/make_finding.h"
#include "origin/memory_region.h"
#include "origin/reported_causes.h"
#include "report/operator_name.h"
#include "report/own_frame.h"
#include "origin/current_call_site.h"
#include "base/fork_safe_mutex.h"
#include "base/format.h"

namespace torchnan {
namespace {

std::atomic<uint64_t> next_sequence{1};
std::atomic<uint64_t> first_of_process{1};
const AtForkChild begin_here([] { first_of_process = next_sequence.load(); });

// Masks are made very often, so their statistics must cost no more than counting.
TensorStats constant_stats(const at::Tensor& tensor) {
  const Counts counts = counts_of(tensor);
  if (counts.nan > 0) return compute_stats(tensor);  // probably data
  TensorStats stats;
  stats.tally.posinf = counts.posinf;
  stats.tally.neginf = counts.neginf;
  return stats;
}

std::shared_ptr<OriginRecord> make_origin(const CallContext& call, OriginRecord::Source source,
                                          const at::Tensor& tensor) {
  auto origin = new_origin_record(source, call.plan, current_call_site(call.session, call.thread), call.session);
  origin->scalar = tensor.dim() == 0 && tensor.storage().nbytes() <= tensor.itemsize();
  const TensorStats stats = source == OriginRecord::Source::kConstant ? constant_stats(tensor) : compute_stats(tensor);
  origin->kinds = stats.kinds();
  origin->facts.kind = dominant_kind(origin->kinds);
  fill_tensor_stats(tensor, stats, origin->facts);
  return origin;
}

// Returns the parameter whose gradient the current node passes to AccumulateGrad, or accumulates itself.
at::Tensor parameter_of_node() {
  const torch::autograd::Node* const node = running_node();
  if (node == nullptr) return {};
  const auto variable_of = [](const torch::autograd::Node& one) {
    const auto* accumulation = dynamic_cast<const torch::autograd::AccumulateGrad*>(&one);
    return accumulation == nullptr ? at::Tensor() : at::Tensor(accumulation->variable);
  };
  at::Tensor found = variable_of(*node);
  for (const torch::autograd::Edge& edge : node->next_edges()) {
    if (!edge.is_valid()) continue;
    if (found.defined()) return {};  // of several
    found = variable_of(*edge.function);
    if (!found.defined()) return {};
  }
  return found;
}

// An operation of the backward pass without a line in the forward pass gets the parameter's name and module.
void name_parameter_of_node(const Site& site, const DetectionSession& session, Finding& facts) {
  if (site.node.empty() || site.forward != 0) return;
  const at::Tensor parameter = parameter_of_node();
  if (!parameter.defined() || !parameter.has_storage()) return;
  const auto owner = owner_of(parameter, true, session);
  if (!owner || owner->name.empty()) return;
  facts.name = owner->name;
  if (facts.module || !facts.backward_stack.empty()) return;  // a hook is no part of a module
  const size_t dot = owner->name.rfind('.');
  facts.module = dot == std::string::npos ? "" : owner->name.substr(0, dot);
}

// An operation on the gradients of a bucket, as in a communication hook, gets the name of the parameter that its first
// bad element belongs to, or else the names of all.
void name_parameters_of_bucket(const at::Tensor& result, const DetectionSession& session, Finding& facts) {
  if (facts.phase != Phase::kBackward) return;
  int64_t element = 0;
  for (size_t d = 0; d < facts.first_index.size(); ++d) {
    element = element * facts.shape[d] + facts.first_index[d];
  }
  const std::string names = query_bucket(result.numel(), element, session);
  if (!names.empty()) facts.name = names;
}

// Compiled code bypasses the dispatcher; take the origin from its results.
bool is_from_compiled_graph(const at::Tensor& tensor) {
  const auto node = tensor.requires_grad() ? tensor.grad_fn() : nullptr;
  return node != nullptr && node->name().rfind("CompiledFunction", 0) == 0;
}

// Says how a -inf came in that may be a mask. Its owner was not searched when it was first seen: masks are common.
std::string way_of_mask(const OriginRecord& mask, const at::Tensor& tensor, const DetectionSession& session) {
  if (!mask.collective.empty()) return format_text("was received by {}", without_namespace(mask.collective));
  const auto owner = owner_of(tensor, /*search_all_modules=*/false, session);
  if (owner && !owner->name.empty()) {
    return format_text("is in the {} {}", owner->is_buffer ? "buffer" : "parameter", owner->name);
  }
  return "came with the data";
}

// Fills in where the constants among the arguments were written, and which argument came in with -inf.
void fill_intentional_arguments(const CallContext& call, OriginRecord& origin) {
  auto& inputs = origin.facts.inputs;
  for (const TensorArgument& argument : tensor_arguments(call)) {
    const auto input =
        std::find_if(inputs.begin(), inputs.end(), [&](const InputSummary& one) { return one.name == argument.name; });
    if (input == inputs.end()) continue;
    const at::Tensor tensor = scannable_values(argument.tensor);
    if (!tensor.defined() || !nonfinite_registry().contains(tensor)) continue;
    const auto provenance = nonfinite_registry().find(tensor);
    if (provenance == nullptr) continue;
    const OriginRecord& earlier = *provenance->first().origin;
    if (earlier.source == OriginRecord::Source::kConstant || earlier.taken_over) {
      const Frame frame = frame_of(earlier.site.live, call.session);
      if (!frame.file.empty()) input->constant = format_text("{}:{}", frame.file, frame.line);
    }
    if (earlier.source != OriginRecord::Source::kConstant && earlier.is_intentional()) {
      origin.incoming = format_text("the -inf in {} {}", argument.name, way_of_mask(earlier, tensor, call.session));
      if (earlier.seen_by_scaler) origin.seen_by_scaler = true;  // the gradients are clipped, and the step is skipped
    }
  }
}

// Returns the tensor that a collective has written, or is about to write, if the argument's values come from there:
// gloo's collectives end by copying from internal memory to the pending result. Undefined if no collective did.
at::Tensor target_of_collective(const CallContext& call, const at::Tensor& argument) {
  if (bound_cache().pending_collective(argument) != nullptr) return argument;
  const at::Tensor target = destination_of_internal_copy(call, argument);
  return target.defined() && bound_cache().pending_collective(target) != nullptr ? target : at::Tensor();
}

}  // namespace

void fill_tensor_stats(const at::Tensor& tensor, const TensorStats& stats, Finding& facts) {
  facts.device = tensor.device().str();
  facts.dtype = dtype_name(tensor);
  facts.shape = tensor.sizes().vec();
  facts.strides = tensor.strides().vec();
  facts.nan = stats.tally.nan;
  facts.posinf = stats.tally.posinf;
  facts.neginf = stats.tally.neginf;
  facts.first_index = stats.first_index;
}

void mark_factor(OriginRecord& origin, uint64_t node_execution_id, const OpPlan& plan, NonfiniteKinds kinds) {
  const bool is_of_user = !origin.facts.backward_stack.empty() || origin.site.node == kCompiledNode;
  const bool same_run = origin.site.node_execution_id != 0 && origin.site.node_execution_id == node_execution_id;
  if (!is_of_user && same_run && plan.pointwise && kinds.nan() && !origin.kinds.nan()) {
    origin.facts.kind = Kind::kNaN;
  }
}

Kind dominant_kind(NonfiniteKinds kinds) { return kinds.nan() ? Kind::kNaN : Kind::kInf; }

std::shared_ptr<OriginRecord> new_origin_record(OriginRecord::Source source, const OpPlan& plan, Site site,
                                                DetectionSession& session) {
  auto origin = std::make_shared<OriginRecord>();
  origin->sequence = next_sequence++;
  origin->source = source;
  origin->site = std::move(site);
  origin->session = session.weak_from_this();
  origin->facts.op = plan.name;
  origin->facts.overload = plan.overload;
  origin->written_in_place = plan.writes_in_place();
  return origin;
}

uint64_t next_origin_sequence() { return next_sequence; }

bool is_inherited(const OriginRecord& origin) { return origin.sequence < first_of_process; }

std::optional<Owner> owner_of(const at::Tensor& tensor, bool search_all_modules, const DetectionSession& session) {
  const MemoryRegion region(tensor);
  return owner_of(StorageSpan{tensor.storage().unsafeGetStorageImpl(), region.begin, region.end},
                  runtime().current_stack_id(), search_all_modules, session);
}

std::optional<Owner> owner_of(const StorageSpan& memory, SiteId use, bool search_all_modules,
                              const DetectionSession& session) {
  if (auto named = session.named_owner(memory.storage)) return named;
  return query_owner(memory, use, search_all_modules, session);
}

std::shared_ptr<OriginRecord> operation_origin(const CallContext& call, const at::Tensor& result, int64_t output,
                                               NonfiniteKinds kinds) {
  auto origin = make_origin(call, OriginRecord::Source::kOperation, result);
  origin->kinds = kinds;
  origin->facts.kind = dominant_kind(kinds);
  origin->facts.output = output;
  origin->facts.inputs = summarise_inputs(call, output);
  fill_intentional_arguments(call, *origin);
  fill_location(origin->site, call.session, origin->facts);
  name_parameter_of_node(origin->site, call.session, origin->facts);
  name_parameters_of_bucket(result, call.session, origin->facts);
  origin->facts.item = query_dataset_item(result, call.session);
  if (ask_is_loss_scaling(origin->site, call.session)) origin->seen_by_scaler = true;
  origin->exempt = ask_is_shape_inference(origin->site, call.session);
  origin->region = replayed_region();
  if (origin->region != nullptr && origin->region->is_backward) origin->facts.phase = Phase::kBackward;
  return origin;
}

std::shared_ptr<OriginRecord> reduction_origin(const CallContext& call, const at::Tensor& sent) {
  auto origin = new_origin_record(OriginRecord::Source::kOperation, call.plan,
                                  current_call_site(call.session, call.thread), call.session);
  origin->region = replayed_region();
  origin->facts.kind = Kind::kInf;
  origin->facts.inputs = summarise_inputs(call, 0);
  fill_location(origin->site, call.session, origin->facts);
  name_parameter_of_node(origin->site, call.session, origin->facts);
  name_parameters_of_bucket(sent, call.session, origin->facts);
  origin->seen_by_scaler = ask_is_loss_scaling(origin->site, call.session);
  origin->exempt = ask_is_shape_inference(origin->site, call.session);
  return origin;
}

std::shared_ptr<OriginRecord> received_origin(const at::Tensor& tensor, OriginRecord::Source source,
                                              NonfiniteKinds kinds, Finding facts, DetectionSession& session) {
  auto origin = std::make_shared<OriginRecord>();
  origin->sequence = next_sequence++;
  origin->source = source;
  origin->kinds = kinds;
  origin->session = session.weak_from_this();
  origin->received = true;
  origin->site.step = session.step();
  origin->site.thread = facts.thread;
  const bool is_placed = !facts.op.empty();
  origin->facts = std::move(facts);
  if (!is_placed) fill_tensor_stats(tensor, compute_stats(tensor), origin->facts);
  return origin;
}

std::shared_ptr<OriginRecord> border_origin(const CallContext& call, const at::Tensor& result, int64_t output,
                                            NonfiniteKinds kinds, const ReplayedRegion& region) {
  auto origin = make_origin(call, OriginRecord::Source::kExternal, result);
  origin->kinds = kinds;
  origin->facts.output = output;
  fill_location(origin->site, call.session, origin->facts);
  origin->foreign = true;
  origin->border = true;
  origin->region = std::make_shared<ReplayedRegion>(region);
  return origin;
}

namespace {

// Why a finding has no numbers. It refers to an earlier step only if the reader has a finding of that step.
std::string hint_of_repeated(const OriginRecord& earlier, bool is_checked) {
  const int64_t step = earlier.site.step;
  if (!earlier.reported.load()) {
    return is_checked
               ? "no numbers: this call was not replayed, because its values begin where those of earlier ones do"
               : "no numbers: the operation is assumed, because not every call is checked";
  }
  return is_checked ? format_text("the same origin as in step {}, where the numbers were different", step)
                    : format_text("assumed to be the same origin as in step {}: not every call is checked", step);
}

}  // namespace

std::shared_ptr<OriginRecord> repeated_origin(const OriginRecord& earlier, DetectionSession& session, bool is_checked) {
  auto origin = std::make_shared<OriginRecord>(static_cast<const OriginFacts&>(earlier));
  origin->sequence = next_sequence++;
  origin->session = session.weak_from_this();
  origin->exempt = earlier.exempt.load();
  origin->seen_by_scaler = earlier.seen_by_scaler.load();
  origin->site.step = session.step();
  Finding& facts = origin->facts;
  facts.inputs.clear();
  facts.first_index.clear();
  facts.nan = facts.posinf = facts.neginf = 0;
  facts.hint = hint_of_repeated(earlier, is_checked);
  if (const Entry* entered = earlier.entry()) {
    Entry entry = *entered;
    entry.facts.step = session.step();
    origin->enter(std::move(entry));
  }
  return origin;
}

std::shared_ptr<OriginRecord> constant_origin(const CallContext& call, const at::Tensor& result) {
  const bool is_wrapped = call.plan.is_constant_factory && result.has_storage();
  const bool is_taken_over = is_wrapped && result.storage().allocator() == nullptr && result.is_cpu();
  const auto source = is_taken_over ? OriginRecord::Source::kExternal : OriginRecord::Source::kConstant;
  auto origin = make_origin(call, source, result);
  origin->taken_over = is_taken_over;
  if (is_taken_over) origin->written = origin->site.live;
  // Masks of -inf are made too often to search the frames each time.
  if (!origin->is_intentional() || origin->kinds.nan()) origin->facts.item = query_dataset_item(result, call.session);
  // "x * inf", "add_(x, alpha=inf)": nothing about x says that it is a mask.
  if (!call.plan.is_constant_factory && !call.plan.is_data_movement) origin->facts.inputs = summarise_inputs(call, 0);
  return origin;
}

std::shared_ptr<OriginRecord> saved_argument_origin(const CallContext& call, const at::Tensor& argument,
                                                    NonfiniteKinds kinds, std::string_view op) {
  auto origin = make_origin(call, OriginRecord::Source::kOperation, argument);
  origin->kinds = kinds;
  origin->facts.op = op;
  origin->facts.overload.clear();
  if (origin->site.forward != 0) origin->site.live = origin->site.forward;
  origin->site.forward = 0;
  origin->site.node.clear();
  origin->site.node_execution_id = 0;
  fill_location(origin->site, call.session, origin->facts);
  return origin;
}

std::shared_ptr<OriginRecord> external_origin(const CallContext& call, const at::Tensor& argument,
                                              NonfiniteKinds kinds) {
  std::optional<Allocation> unwritten = allocation_of_unwritten(argument);
  const at::Tensor target = unwritten ? at::Tensor() : target_of_collective(call, argument);
  if (target.defined()) {
    if (auto reduction = overflowed_reduction(target, argument, kinds)) return reduction;
  }
  auto origin = make_origin(call, OriginRecord::Source::kExternal, argument);
  origin->kinds = kinds;
  fill_location(origin->site, call.session, origin->facts);
  const BoundCache::Entry note = bound_cache().find(argument);
  const bool was_finite = note.state == BoundCache::State::kFinite || note.state == BoundCache::State::kStale;
  origin->foreign = was_finite || is_from_compiled_graph(argument);
  origin->exempt = note.state == BoundCache::State::kIgnored || ask_is_shape_inference(origin->site, call.session);
  origin->parameter = is_parameter(argument);
  // A mask has no owner to search for.
  if (origin->parameter || kinds != NonfiniteKinds::only_neginf())
    origin->owner = owner_of(argument, origin->parameter, call.session);
  if (!origin->owner) origin->facts.item = query_dataset_item(argument, call.session);
  if (note.state == BoundCache::State::kUninitialized && !target.defined()) unwritten = {note.site, note.op};
  if (unwritten) {
    origin->unwritten = true;
    origin->allocation.live = unwritten->site;
    origin->allocator = *unwritten->op;
    if (unwritten->unfinished != nullptr) {
      origin->facts.hint = format_text("{} will write this memory and has not completed: call wait() on its Work first",
                                       without_namespace(*unwritten->unfinished));
    }
  }
  if (!target.defined()) return origin;
  origin->collective = *bound_cache().pending_collective(target);
  if (!origin->owner) origin->parameter = false;  // a pipeline receives into leaves that require grad
  return origin;
}

std::shared_ptr<OriginRecord> one_origin_of_step(const DetectionSession& session,
                                                 std::shared_ptr<OriginRecord> origin) {
  const Frame* line = own_frame(origin->facts.stack);
  if (line == nullptr) return origin;
  return one_origin_of(format_text("{}:{}", line->file, line->line), session, std::move(origin));
}

bool is_of_skipped_step(const DetectionSession& session, const OriginRecord& origin) {
  const bool is_of_backward_pass =
      !origin.site.node.empty() || (origin.region != nullptr && origin.region->is_backward);
  return is_of_backward_pass && session.is_skipped_step(origin.site.step);
}

bool is_constant_write(const Provenance& provenance) {
  const Cause& cause = provenance.first();
  const bool is_computed = !cause.origin->facts.inputs.empty();  // with an infinite number
  return cause.origin->source != OriginRecord::Source::kOperation && !is_computed && !cause.first_computation &&
         cause.origin->entry() == nullptr;
}

// Whether a tensor that holds a constant is a parameter, or shares its memory, like the shard of a distributed one.
// Only a constant that was copied into other memory can be in a shard.
bool is_of_parameter(const CallContext& call, const at::Tensor& tensor, const Provenance& provenance) {
  if (is_parameter(tensor)) return true;
  const auto& steps = provenance.first().steps;
  const bool is_copied = std::any_of(steps.begin(), steps.end(), [](const Step& step) {
    return step.plan != nullptr && step.plan->writes_in_place();
  });
  if (!is_copied || provenance.first().kinds == NonfiniteKinds::only_neginf()) return false;
  const auto owner = owner_of(tensor, false, call.session);
  return owner && !owner->is_buffer;
}

// Returns the provenance of what this rank has sent, if it explains the result of the collective. A mask explains no
// other kinds.
NonfiniteRegistry::ProvenancePtr returned_by_collective(const at::Tensor& result, NonfiniteKinds kinds) {
  auto sent = nonfinite_registry().find_present(result);
  return sent != nullptr && sent->explains(kinds) ? sent : nullptr;
}

NonfiniteRegistry::ProvenancePtr provenance_of_argument(const CallContext& call, const at::Tensor& argument,
                                                        NonfiniteKinds kinds) {
  auto known = nonfinite_registry().find(argument);
  if (known != nullptr && known->pending()) known = returned_by_collective(argument, kinds);
  if (known != nullptr && !(is_constant_write(*known) && is_of_parameter(call, argument, *known))) return known;
  const auto origin = external_origin(call, argument, kinds);
  if (known != nullptr) {
    const OriginRecord& copied = *known->first().origin;
    if (!copied.collective.empty() && !origin->owner) return known;  // a leaf that a stage of a pipeline has received
    origin->collective = copied.collective;
    if (copied.collective.empty()) origin->written = copied.site.live;
  }
  auto provenance = std::make_shared<Provenance>(Cause{origin, kinds});
  nonfinite_registry().remember(argument, provenance);
  return provenance;
}

void record_first_use(OriginRecord& origin, const OpPlan& plan, const Site& site, const DetectionSession& session,
                      c10::function_ref<std::optional<Owner>()> owner_of_argument) {
  const bool has_place = origin.received && !origin.facts.op.empty();
  if (plan.is_passthrough || origin.entry() != nullptr || has_place) return;
  Entry entry;
  entry.facts.op = plan.name;
  entry.facts.overload = plan.overload;
  entry.facts.step = site.step;
  fill_location(site, session, entry.facts);
  const bool is_first_reader = origin.owner && site.live != 0 && site.live == origin.site.live &&
                               site.node_execution_id == origin.site.node_execution_id && site.step == origin.site.step;
  if (!is_first_reader) entry.owner = owner_of_argument();  // a search
  if (!entry.owner) entry.owner = origin.owner;
  origin.enter(std::move(entry));
}

}  // namespace torchnan
