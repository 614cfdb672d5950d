#include "python/region_call.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/ScopeExit.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_cpp_function.h>

#include "intercept/region_border.h"
#include "detection/error_containment.h"
#include "detection/private_generators.h"
#include "device/devices.h"
#include "device/resolve.h"
#include "intercept/op_entry.h"
#include "base/dispatch_key.h"
#include "python/apart.h"
#include "python/convert.h"
#include "python/kept_calls.h"
#include "python/stack_table.h"
#include "python/tensor_in.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// What a call on a device copies before it overwrites it. Each copy takes the host some microseconds.
constexpr size_t kMaxCopies = 16;
constexpr int64_t kMaxCopiedBytes = int64_t{1} << 20;

constexpr const char* kDiscarded = "its compiled code was discarded before the device reported";
constexpr const char* kFiniteReplay = "its replay gave finite values";
constexpr const char* kUnseenCollectives = ", and its collectives may have brought the value";
constexpr const char* kPassHasRun = "its backward pass has run before";
constexpr const char* kOverwrittenBeforePass = "its inputs were overwritten before its backward pass";

thread_local bool runs_on_device = false;

bool is_subclass(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
}

// Copies an argument that a call is about to overwrite, in the state in which the call received it.
at::Tensor copied(const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard unwatched(kInterceptorKey);
  const at::NoGradGuard no_grad;
  at::Tensor copy = at::clone(tensor.detach());
  if (tensor.requires_grad()) copy.requires_grad_();
  record_copy(tensor, copy);
  return copy;
}

// The state of the generator from which this thread draws for a device, or for the host. Throws c10::Error if the
// device has none.
at::Tensor random_state_of(c10::Device device) {
  Apart* const apart = Apart::current();
  return state_of(apart == nullptr ? at::globalContext().defaultGenerator(device)
                                   : apart->generators().of_device(device));
}

// While a region runs, its kernels are not checked. In the replay of a step the key stays on, which gives them their
// generators.
class UncheckedKernels {
 public:
  UncheckedKernels() {
    ThreadState& thread = ThreadState::current();
    if (thread.private_generators == nullptr) [[likely]] {
      unwatched_.emplace(kInterceptorKey);
      return;
    }
    thread.suspend();
    suspended_ = &thread;
  }
  ~UncheckedKernels() {
    if (suspended_ != nullptr) suspended_->resume();
  }
  UncheckedKernels(const UncheckedKernels&) = delete;
  UncheckedKernels& operator=(const UncheckedKernels&) = delete;

 private:
  std::optional<c10::impl::ExcludeDispatchKeyGuard> unwatched_;
  ThreadState* suspended_ = nullptr;
};

PyObject* checked_result(PyObject* result) {
  if (result == nullptr) throw py::error_already_set();
  return result;
}

py::list list_of(const std::vector<py::object>& objects) {
  py::list list;
  for (const py::object& object : objects) list.append(object);
  return list;
}

bool contains(const std::vector<size_t>& indices, size_t i) {
  return std::find(indices.begin(), indices.end(), i) != indices.end();
}

int64_t version_of(const py::object& argument) {
  const at::Tensor* tensor = tensor_in(argument);
  return tensor == nullptr || tensor->is_inference() ? -1 : static_cast<int64_t>(tensor->_version());
}

}  // namespace

bool is_running_region_on_device() noexcept { return runs_on_device; }

std::optional<ProvenanceHandle> provenance_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.is_cpu() ? scannable_values(tensor) : at::Tensor();
  auto provenance = values.defined() ? nonfinite_registry().find(values) : provenance_of_last_write(tensor);
  if (provenance == nullptr) return std::nullopt;
  return ProvenanceHandle{std::move(provenance)};
}

RegionBorder::RegionBorder(const py::kwargs& given) {
  const auto take = [&given](const char* name, auto& field) {
    field = given[name].cast<std::decay_t<decltype(field)>>();
  };
  take("mutated", mutated);
  take("unread", unread);
  take("own", own);
  facts.region = from_py_str(given["region"]);
  facts.file = from_py_str(given["file"]);
  take("line", facts.line);
  take("obstacle", facts.obstacle);
  take("parts", parts);
  take("is_distributed", is_distributed);
  take("has_collectives", has_collectives);
  const std::string of_results = from_py_str(given["device"]);
  if (!of_results.empty()) device.emplace(of_results);
  take("compared", compared);
  take("unwritten", unwritten);
  take("note_unwritten", note_unwritten);
  take("watch_backward", watch_backward);
  take("explain_late", explain_late);
}

std::shared_ptr<const ReplayedRegion> RegionBorder::on_device(std::string_view obstacle, bool may_be_held) {
  if (on_device_ == nullptr || on_device_->facts.obstacle != obstacle || (on_device_->mark != nullptr) != may_be_held) {
    ReplayedRegion region{facts};
    region.facts.obstacle = obstacle;
    if (may_be_held) region.mark = mark;
    on_device_ = std::make_shared<const ReplayedRegion>(std::move(region));
  }
  return on_device_;
}

Modes::Modes() {
  for (const auto& [device, name] : {std::pair{at::kCPU, "cpu"}, std::pair{at::kCUDA, "cuda"}}) {
    if (at::autocast::is_autocast_enabled(device))
      autocast.emplace_back(name, at::autocast::get_autocast_dtype(device));
  }
}

RegionCall::RegionCall(std::shared_ptr<RegionBorder> border, const py::tuple& args, DetectionSession& session)
    : border_(std::move(border)) {
  if (!run_contained(session, "preparing the call of a compiled region", [&] { record(args, session); })) {
    refuse("the inputs of its replay could not be recorded");
  }
}

void RegionCall::refuse(std::string why) {
  state_ = State::kRefused;
  refusal_ = std::move(why);
}

void RegionCall::lose(const char* why) {
  if (!can_be_replayed()) return;
  state_ = State::kLost;
  loss_ = why;
}

py::object RegionCall::run(const py::handle& function, const py::tuple& args) {
  if (has_collectives_ && state_ == State::kHeld) return run_receiving(function, args);
  const UncheckedKernels unchecked;
  const auto leave = c10::make_scope_exit([outer = runs_on_device] { runs_on_device = outer; });
  runs_on_device = device_.has_value();
  return py::reinterpret_steal<py::object>(checked_result(PyObject_Call(function.ptr(), args.ptr(), nullptr)));
}

void RegionCall::begin_backward(const py::tuple& gradients) {
  const std::shared_ptr<DetectionSession> session = ThreadState::current().shared_session();
  if (session == nullptr) return;
  run_contained(*session, "recording the gradients of a compiled region", [&] {
    if (nonfinite_registry().in_use()) {
      for (const at::Tensor& part : parts_of(gradients)) record_region_use(part, /*is_compared=*/false);
    }
    if (!device_) return;
    given_backward_ = on_devices_;
    record_on_devices(gradients, given_backward_, *session);
    if (state_ != State::kKept) return;
    const bool is_list = gradients.size() == 1 && PyList_CheckExact(py::object(gradients[0]).ptr());
    const auto given = is_list ? py::sequence(gradients[0]) : py::sequence(gradients);
    kept_.inputs.keep_gradients(given, session->options().max_copied_bytes - bytes_of_kept_calls());
  });
}

py::object RegionCall::run_receiving(const py::handle& function, const py::tuple& args) {
  const std::shared_ptr<DetectionSession> session = ThreadState::current().shared_session();
  if (session == nullptr) return py::reinterpret_borrow<py::object>(function)(*args);
  received_.max_bytes = session->options().max_copied_bytes;
  const py::object results = [&] {
    const ReceivingValues receiving(received_, *session);
    return py::reinterpret_steal<py::object>(checked_result(PyObject_Call(function.ptr(), args.ptr(), nullptr)));
  }();
  if (received_.bytes() > received_.max_bytes) {
    refuse("its collectives bring " + std::to_string(received_.bytes()) +
           " bytes, and max_copied_bytes=" + std::to_string(received_.max_bytes));
  }
  return results;
}

BadValues RegionCall::check_results(const py::handle& results) {
  ThreadState& thread = ThreadState::current();
  const std::shared_ptr<DetectionSession> session = thread.shared_session();
  BadValues bad;
  if (session != nullptr) {
    run_contained(*session, "checking the results of a compiled region", [&] {
      note_randomness();
      const Objects outputs = items_of(results);
      bad = check_all(outputs, *session, on_devices_, border_->unwritten, kept_.forward);
      if (device_ && state_ != State::kHeld && !bad.empty()) note_given();
      if (state_ == State::kKept && !bad.empty()) state_ = State::kHeld;  // a result on the host is explained at once
      if (state_ == State::kKept || !bad.empty() || is_differentiable(outputs)) note_stack();
      attach_to_node(outputs);
      if (state_ == State::kKept) {
        kept_.ids = ids();
        forget_calls_of_other_steps(*session);
        kept_.inputs.keep(held_.arguments, held_.copied_indices, session->options());
        kept_.step = session->step();
        keep(shared_from_this(), *session);
      }
      heed_devices(*session);
    });
    if (!border_->unwritten.empty()) border_->note_unwritten(results);
  }
  border_->finite_calls += bad.empty();
  if (bad.empty()) end_forward();
  return bad;
}

void RegionCall::record_read_by_backward(const py::handle& results) {
  const std::shared_ptr<DetectionSession> session = ThreadState::current().shared_session();
  if (!device_ || session == nullptr) return;
  run_contained(*session, "recording the results of a compiled region", [&] {
    const Objects outputs = items_of(results);
    if (is_differentiable(outputs)) record_on_devices(outputs, on_devices_, *session);
  });
}

void RegionCall::note_stack() { stack_ = StackTable::instance().current_stack_id(); }

void RegionCall::end_forward() {
  written_.clear();
  if (outputs_.empty() || !can_be_replayed()) release();
}

BadValues RegionCall::check_gradients(const py::handle& gradients) {
  ThreadState& thread = ThreadState::current();
  const std::shared_ptr<DetectionSession> session = thread.shared_session();
  if (session == nullptr || !is_active_in_backward(*session)) return {};
  BadValues bad;
  run_contained(*session, "checking the gradients of a compiled region", [&] {
    bad = check_all(items_of(gradients), *session, given_backward_, {}, kept_.backward);
    if (state_ == State::kKept && !bad.empty()) forget();  // the same, but the inputs are not held any more
    if (state_ == State::kKept) {
      kept_.inputs.release_returned(items_of(gradients));
      kept_.backward.stack = StackTable::instance().current_stack_id();
    }
    heed_devices(*session);
    border_->finite_passes += bad.empty();
    if (!bad.empty() && !is_untouched()) lose(kOverwrittenBeforePass);
  });
  return bad;
}

void RegionCall::release() {
  if (state_ == State::kKept) return;
  lose(kPassHasRun);
  drop_inputs();
}

void RegionCall::forget() {
  lose(kGoneInputs);
  drop_inputs();
}

void RegionCall::drop_inputs() {
  held_ = {};
  kept_ = {};
  received_.clear();
}

py::list RegionCall::arguments() const {
  const c10::impl::ExcludeDispatchKeyGuard unwatched(kInterceptorKey);
  py::list list = list_of(held_.arguments);
  kept_.inputs.restore(list);
  for (const Unread& one : held_.unread) list[one.index] = py::cast(at::zeros(one.sizes, one.options));
  return list;
}

std::vector<uintptr_t> RegionCall::ids() const {
  if (!kept_.ids.empty()) return kept_.ids;
  std::vector<uintptr_t> ids;
  for (const py::object& argument : held_.arguments) ids.push_back(reinterpret_cast<uintptr_t>(argument.ptr()));
  return ids;
}

py::list RegionCall::written() const { return list_of(written_); }

py::object RegionCall::received() const {
  if (!has_collectives_) return py::none();
  py::list list;
  for (const ReceivedValue& one : received_.values()) {
    list.append(py::make_tuple(one.op, one.group, one.value.defined() ? py::cast(one.value) : py::object(py::none())));
  }
  return list;
}

py::dict RegionCall::random_states() const {
  py::dict states;
  if (held_.random_state.defined()) states["cpu"] = held_.random_state;
  if (held_.device_random_state.defined()) states[py::str(device_->str())] = held_.device_random_state;
  return states;
}

py::dict RegionCall::device_random_states_after() const {
  py::dict states;
  if (held_.device_random_state_after.defined()) states[py::str(device_->str())] = held_.device_random_state_after;
  return states;
}

RegionCall::Objects RegionCall::items_of(const py::handle& results) {
  Objects items;
  if (!PyTuple_Check(results.ptr()) && !PyList_Check(results.ptr())) {
    items.push_back(py::reinterpret_borrow<py::object>(results));
  } else {
    for (const py::handle item : results) items.push_back(py::reinterpret_borrow<py::object>(item));
  }
  return items;
}

bool RegionCall::is_differentiable(const Objects& outputs) {
  return std::any_of(outputs.begin(), outputs.end(), [](const py::object& value) {
    const at::Tensor* tensor = tensor_in(value);
    return tensor != nullptr && tensor->grad_fn() != nullptr;
  });
}

void RegionCall::record(const py::tuple& args, DetectionSession& session) {
  hold(args);
  has_collectives_ = border_->has_collectives;
  for (size_t i = 0; i < held_.arguments.size(); ++i) record_argument(i);
  if (!device_) device_ = border_->device;
  if (device_) {
    resolve_earlier_alarm();
    record_on_devices(held_.arguments, on_devices_, session);
    if (!border_->compared.empty() && boxed_ == 0) record_compared(session);
  }
  choose_state(session, record_mutated());
  keep_mutated();
  if (device_) prepare_writes();
  if (device_ && !can_be_replayed()) held_.arguments.clear();  // which the region may free
  if (!can_be_replayed() || !border_->is_random.value_or(true)) return;
  held_.random_state = random_state_of(at::kCPU);
  if (device_) held_.device_random_state = random_state_of(*device_);
}

// Compiled autograd passes a list first, which the call empties.
void RegionCall::hold(const py::tuple& args) {
  for (const py::handle tensor : border_->own) held_.arguments.push_back(py::reinterpret_borrow<py::object>(tensor));
  for (const py::handle argument : args) {
    if (!PyList_CheckExact(argument.ptr()) || !argument.is(args[0])) {
      held_.arguments.push_back(py::reinterpret_borrow<py::object>(argument));
      continue;
    }
    for (const py::handle item : argument) held_.arguments.push_back(py::reinterpret_borrow<py::object>(item));
    boxed_ = held_.arguments.size() - border_->own.size();
  }
}

void RegionCall::choose_state(DetectionSession& session, int64_t bytes_to_copy) {
  const int64_t max_bytes = session.options().max_copied_bytes;
  if (!border_->facts.obstacle.empty()) return refuse(border_->facts.obstacle);
  if (bytes_to_copy > max_bytes) {
    return refuse("it overwrites " + std::to_string(bytes_to_copy) +
                  " bytes of arguments, and max_copied_bytes=" + std::to_string(max_bytes));
  }
  if (!device_) return;
  if (has_collectives_) return refuse(std::string(kGoneInputs) + kUnseenCollectives);
  if (has_to_be_held(session)) return;
  if (!may_be_kept(bytes_to_copy)) return lose(kGoneInputs);
  state_ = State::kKept;
}

// It may mark this region. The arguments are recorded afterwards: what makes them bad is found with the results.
void RegionCall::resolve_earlier_alarm() const {
  if (!devices().is_capturing() && devices().is_alarmed() && !has_known_bad()) resolve(Delivery::kDeferred);
}

// A call whose stream is being captured cannot wait. With when="origin", every operation waits.
bool RegionCall::has_to_be_held(DetectionSession& session) const {
  return !devices().is_capturing() && (session.reports_origins() || border_->mark->take(session));
}

// A device can replay a call later if little has to be copied for that. A list of arguments is emptied by the call, so
// that the values in it can be freed.
bool RegionCall::may_be_kept(int64_t bytes_to_copy) const {
  const bool copies_little =
      held_.copied_indices.size() - held_.unread.size() <= kMaxCopies && bytes_to_copy <= kMaxCopiedBytes;
  const auto can_be_kept = [](const py::object& argument) {
    const at::Tensor* const tensor = tensor_in(argument);
    return tensor == nullptr || KeptTensor::is_possible(*tensor);
  };
  return boxed_ == 0 && copies_little && !devices().is_capturing() &&
         std::all_of(held_.arguments.begin(), held_.arguments.end(), can_be_kept);
}

void RegionCall::LateResults::record(const std::vector<RegionResult>& parts) {
  *this = {};
  Devices::Lock locked(devices());
  for (const RegionResult& part : parts) {
    if (!part.is_on_device) continue;
    const EventNumber event = locked.journal().last_event(part.tensor);
    locked.preserved().expect(event);
    events.emplace_back(part.index, event);
  }
}

bool RegionCall::LateResults::has(uint64_t event) const {
  return std::any_of(events.begin(), events.end(), [event](const auto& one) { return one.second == event; });
}

bool RegionCall::has_result(uint64_t event) const { return kept_.forward.has(event) || kept_.backward.has(event); }

LateReplay RegionCall::replay_late(uint64_t event, KindsOfEvent kinds_of) {
  LateResults& results = kept_.forward.has(event) ? kept_.forward : kept_.backward;
  if (!results.found) {
    std::string obstacle = kept_.inputs.take(&results == &kept_.backward);
    if (!obstacle.empty()) return {nullptr, std::move(obstacle)};
    const auto end = c10::make_scope_exit([this] { kept_.inputs.put_back(); });
    if (!find_late(results, kinds_of)) return {nullptr, kDiscarded};
  }
  for (const auto& [index, number] : results.events) {
    const auto found = number == event ? results.found->find(index) : results.found->end();
    if (found != results.found->end()) return {found->second, ""};
  }
  return {nullptr, kFiniteReplay};
}

// The values of results that still exist are compared with those of the replay. Returns false if the compiled region
// does not exist any more.
bool RegionCall::find_late(LateResults& results, KindsOfEvent kinds_of) {
  BadValues bad;
  std::vector<at::Tensor> values;
  for (const auto& [index, number] : results.events) {
    values.resize(std::max(values.size(), index + 1));
    const auto event = Devices::Lock(devices()).copy_of(number);
    if (event) values[index] = live_tensor(*event);
    NonfiniteKinds kinds = kinds_of(number);
    if (kinds.any() && values[index].defined()) kinds = kinds_anywhere(values[index]);
    if (kinds.any()) bad.emplace_back(index, bits_of(kinds));
  }
  const bool is_backward = &results == &kept_.backward;
  const py::object tangents = is_backward ? py::cast(kept_.inputs.gradients()) : py::object(py::none());
  const py::object found = border_->explain_late(shared_from_this(), bad, values, tangents);
  if (found.is_none()) return false;
  results.found.emplace();
  for (const auto& [index, handle] : found.cast<std::map<size_t, ProvenanceHandle>>())
    results.found->emplace(index, handle.provenance);
  return true;
}

void RegionCall::record_argument(size_t index) {
  const py::object& argument = held_.arguments[index];
  const at::Tensor* tensor = tensor_in(argument);
  if (tensor == nullptr) return;
  if (!tensor->is_cpu() && !device_) device_ = tensor->device();
  if (!has_collectives_ && is_subclass(*tensor)) has_collectives_ = border_->is_distributed(argument).cast<bool>();
  if (nonfinite_registry().in_use()) record_region_use(*tensor, boxed_ == 0 && contains(border_->compared, index));
}

// Records the tensors among some values, and in lists of them, that are on devices.
template <typename Values>
void RegionCall::record_on_devices(const Values& values, DeviceCheck::Arguments& recorded,
                                   DetectionSession& session) const {
  const std::vector<at::Tensor> tensors = parts_of(values);
  const py::gil_scoped_release no_gil;
  DeviceCheck::Arguments found = record_region_arguments(session, tensors);
  recorded.read.insert(recorded.read.end(), found.read.begin(), found.read.end());
  recorded.intended |= found.intended;
  if (found.given != nullptr) recorded.given = std::move(found.given);
}

void RegionCall::record_compared(DetectionSession& session) const {
  std::vector<py::object> compared;
  for (const size_t i : border_->compared) compared.push_back(held_.arguments[i]);
  const std::vector<at::Tensor> tensors = parts_of(compared);
  const py::gil_scoped_release no_gil;
  record_region_comparison(session, tensors);
}

// Visits the plain tensors that a value consists of, if it is a tensor.
template <typename Visit>
void RegionCall::visit_parts(const py::handle& value, Visit&& visit) const {
  const at::Tensor* tensor = tensor_in(value);
  if (tensor == nullptr) return;
  if (!is_subclass(*tensor)) return visit(*tensor);
  for (const py::handle part : border_->parts(value)) visit(*tensor_in(part));
}

// Returns the plain tensors among some values, and in lists of them.
template <typename Values>
std::vector<at::Tensor> RegionCall::parts_of(const Values& values) const {
  std::vector<at::Tensor> parts;
  const auto add = [&parts](const at::Tensor& part) { parts.push_back(part); };
  for (const py::handle value : values) {
    visit_parts(value, add);
    if (!PyList_CheckExact(value.ptr())) continue;
    for (const py::handle item : value) visit_parts(item, add);
  }
  return parts;
}

// Returns how many bytes have to be copied.
int64_t RegionCall::record_mutated() {
  int64_t bytes_to_copy = 0;
  for (const size_t i : border_->mutated) {
    const at::Tensor* tensor = i < held_.arguments.size() ? tensor_in(held_.arguments[i]) : nullptr;
    if (tensor == nullptr) continue;
    held_.copied_indices.push_back(i);
    written_.push_back(held_.arguments[i]);
    if (has_to_be_copied(i, *tensor)) {
      bytes_to_copy += static_cast<int64_t>(tensor->nbytes());
    } else {
      held_.unread.push_back({i, tensor->sizes().vec(), tensor->options()});
      held_.arguments[i] = py::none();
    }
  }
  return bytes_to_copy;
}

// The region may overwrite what the replay of another call needs, such as weights.
void RegionCall::prepare_writes() const {
  if (written_.empty() || !devices().has_to_prepare_writes()) return;
  std::vector<const c10::StorageImpl*> storages;
  for (const at::Tensor& part : parts_of(written_)) {
    if (part.has_storage()) storages.push_back(storage_of(part));
  }
  const py::gil_scoped_release no_gil;
  devices().prepare_writes(storages);
}

// A value that is not finite has an origin, which a replay looks up.
bool RegionCall::has_to_be_copied(size_t index, const at::Tensor& tensor) const {
  if (!std::binary_search(border_->unread.begin(), border_->unread.end(), index)) return true;
  return is_subclass(tensor) || (tensor.is_cpu() && nonfinite_registry().in_use() && kinds_of(tensor).any());
}

// Keeps overwritten arguments in their previous state. The tensor itself would refer to the node that holds this call.
void RegionCall::keep_mutated() {
  if (!can_be_replayed()) {
    if (nonfinite_registry().in_use()) record_given();
    held_.unread.clear();
  }
  for (const size_t i : held_.copied_indices) {
    const at::Tensor* tensor = tensor_in(held_.arguments[i]);
    if (tensor == nullptr) continue;  // it is not read
    held_.arguments[i] = can_be_replayed() ? py::cast(copied(*tensor)) : py::object(py::none());
  }
}

// If an argument is overwritten and was not copied, only now can it be recognized as the cause of a result.
void RegionCall::record_given() {
  for (const py::object& value : written_) {
    if (!kinds_of(*tensor_in(value)).any()) continue;
    if (auto known = provenance_of(*tensor_in(value))) given_ = py::cast(std::move(*known));
  }
}

// A result on the host may come from an argument on a device.
void RegionCall::note_given() {
  if (auto provenance = provenance_on_devices(on_devices_)) given_ = py::cast(ProvenanceHandle{std::move(provenance)});
}

void RegionCall::note_randomness() {
  if (held_.device_random_state.defined()) held_.device_random_state_after = random_state_of(*device_);
  if (!border_->is_random && held_.random_state.defined()) {
    border_->is_random = !is_same_state(random_state_of(at::kCPU), held_.random_state) ||
                         (device_ && !is_same_state(held_.device_random_state_after, held_.device_random_state));
  }
  if (border_->is_random.value_or(true)) return;
  held_.random_state.reset();
  held_.device_random_state.reset();
  held_.device_random_state_after.reset();
}

// Checks written arguments first, because the records about a result that shares their memory are valid only then.
// `unwritten`: indices of tensors that must not be read yet.
BadValues RegionCall::check_all(const Objects& values, DetectionSession& session,
                                const DeviceCheck::Arguments& arguments, const std::vector<size_t>& unwritten,
                                LateResults& late) {
  std::vector<RegionResult> parts;
  const auto add_parts = [&](size_t index, const py::object& value, bool is_unwritten) {
    visit_parts(value, [&](const at::Tensor& part) { parts.push_back({index, part, is_unwritten}); });
  };
  for (size_t k = 0; k < written_.size(); ++k) add_parts(values.size() + k, written_[k], /*is_unwritten=*/false);
  for (size_t i = 0; i < values.size(); ++i) {
    if (!contains(unwritten, i)) add_parts(i, values[i], /*is_unwritten=*/true);
  }
  const bool is_on_host =
      std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.tensor.is_cpu(); });
  const auto region = is_on_host ? nullptr
                                 : border_->on_device(can_be_replayed() ? kGoneInputs : obstacle(),
                                                      /*may_be_held=*/state_ != State::kRefused);
  const bool waits = device_ && state_ == State::kHeld;
  BadValues bad;
  const py::gil_scoped_release no_gil;
  if (waits) find_kinds_on_devices(parts);
  if (!is_on_host) record_results_on_devices(session, arguments, parts, region);
  if (state_ == State::kKept) late.record(parts);
  ThreadState& thread = ThreadState::current();
  for (const RegionResult& part : parts) {
    if (part.is_on_device) continue;
    NonfiniteKinds kinds = part.kinds;
    if (!kinds.any()) kinds = check_region_result(part.tensor, part.is_unwritten, thread);
    if (!kinds.any()) continue;
    if (!bad.empty() && bad.back().first == part.index) {
      bad.back().second |= bits_of(kinds);
    } else {
      bad.emplace_back(part.index, bits_of(kinds));
    }
  }
  if (waits && !bad.empty()) border_->mark->set(session);  // it may recur
  return bad;
}

// A device may already have reported what the call has made: then the call is replayed, so it must be kept by now.
void RegionCall::heed_devices(DetectionSession& session) const {
  if (!device_) return;
  const py::gil_scoped_release no_gil;
  heed_alarm(session, /*is_read=*/false);
}

// Attaches this object to the node that the call made, if any, until its backward pass.
void RegionCall::attach_to_node(const Objects& outputs) {
  py::object node;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor* tensor = tensor_in(outputs[i]);
    if (tensor == nullptr || tensor->grad_fn() == nullptr) continue;
    const auto made = py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(tensor->grad_fn()));
    if (!node && std::strcmp(Py_TYPE(made.ptr())->tp_name, "CompiledFunctionBackward") == 0) node = made;
    if (node && made.is(node)) outputs_.emplace_back(i, tensor->output_nr());
  }
  if (!node) return;
  for (const py::object& argument : held_.arguments) held_.versions.push_back(version_of(argument));
  if (Py_TYPE(node.ptr()) != border_->watched) {
    border_->watch_backward(node);
    border_->watched = Py_TYPE(node.ptr());
  }
  node.attr("metadata")["torchnan"] = py::cast(shared_from_this());
}

bool RegionCall::is_untouched() const {
  for (size_t i = 0; i < held_.arguments.size() && i < held_.versions.size(); ++i) {
    if (held_.versions[i] != version_of(held_.arguments[i])) return false;
  }
  return true;
}

}  // namespace torchnan
