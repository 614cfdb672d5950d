#include "python/kept_inputs.h"

#include <algorithm>
#include <utility>

#include <c10/core/InferenceMode.h>

#include "base/format.h"
#include "device/devices.h"
#include "python/tensor_in.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// Of the last backward pass that has begun; guarded by the GIL. Never destroyed: threads may outlive static
// destructors.
std::vector<const c10::TensorImpl*>& root_gradients = *new std::vector<const c10::TensorImpl*>;

bool is_root_gradient(const at::Tensor& gradient) {
  const auto& roots = root_gradients;
  return std::find(roots.begin(), roots.end(), gradient.unsafeGetTensorImpl()) != roots.end();
}

// Whether another node of the backward pass may add to a gradient that this one is given, in place. That node refers to
// it, too, and adds in place only to dense tensors (InputBuffer::accumulate() of PyTorch).
bool may_be_added_to(const at::Tensor& gradient) {
  if (is_root_gradient(gradient)) return false;
  return gradient.is_non_overlapping_and_dense() && (gradient.use_count() > 1 || gradient.storage().use_count() > 1);
}

// Returns another tensor with the same memory and version.
at::Tensor alias_of(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(), impl.allow_tensor_metadata_change()));
}

// `exceeded_limit`: of the memory that may be reserved for copies.
std::string updated_weights(std::optional<int64_t> exceeded_limit) {
  const std::string why_not_copied =
      exceeded_limit ? format_text("and max_preserved_bytes={} leaves no room for copies of them ", *exceeded_limit)
                     : "";
  return format_text(
      "its weights were updated before the device reported {}(read the loss before the optimizer steps, or use "
      "torchnan.StepGuard)",
      why_not_copied);
}

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.storage().nbytes()); }

}  // namespace

void note_root_gradients(c10::ArrayRef<at::Tensor> gradients) {
  root_gradients.clear();
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) root_gradients.push_back(gradient.unsafeGetTensorImpl());
  }
}

KeptTensor::KeptTensor(const at::Tensor& tensor, std::shared_ptr<PreservedStorage> preserved, bool is_copy)
    : tensor_(tensor.storage().getWeakStorageImpl(), TensorSnapshot(tensor)),
      empty_(tensor.numel() == 0 ? alias_of(tensor) : at::Tensor()),
      preserved_(std::move(preserved)),
      is_inference_(tensor.is_inference()),
      requires_grad_(tensor.requires_grad()),
      is_copy_(is_copy) {}

bool KeptTensor::is_possible(const at::Tensor& tensor) {
  const bool is_plain = !tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python) &&
                        tensor.layout() == c10::kStrided && tensor.has_storage();
  return is_plain && tensor.dim() <= int64_t{TensorSnapshot::kMaxDims} &&
         (tensor.numel() == 0 || tensor.storage().data() != nullptr);
}

// In inference mode, a tensor that is made has no gradient.
at::Tensor KeptTensor::lock() const {
  if (empty_.defined()) return empty_;
  const c10::InferenceMode as_then(is_inference_);
  at::Tensor values;
  if (is_unchanged()) {
    values = tensor_.lock();
  } else if (preserved_->is_copied()) {
    values = preserved_->copied(tensor_.place());
  }
  if (values.defined() && requires_grad_) values.set_requires_grad(true);
  return values;
}

bool KeptTensor::is_unchanged() const { return preserved_->is_unchanged(Devices::Lock(devices()).journal()); }

void KeptInputs::keep(std::vector<py::object>& arguments, const std::vector<size_t>& copies, const Options& options) {
  std::vector<size_t> indices;
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const at::Tensor* const tensor = tensor_in(arguments[i]);
    if (tensor == nullptr) continue;
    indices.push_back(i);
    tensors.push_back(*tensor);
  }
  auto preserved = devices().preserve(tensors, options.max_preserved_bytes);
  for (size_t k = 0; k < tensors.size(); ++k) {
    const size_t i = indices[k];
    const bool is_copy = std::binary_search(copies.begin(), copies.end(), i);
    KeptTensor& kept =
        arguments_.emplace_back(Argument{i, KeptTensor(tensors[k], std::move(preserved[k]), is_copy)}).tensor;
    const int64_t bytes = bytes_of_arguments_ + bytes_of(tensors[k]);
    if (!kept.is_weight() && bytes <= options.max_copied_bytes) {
      kept.hold_memory(tensors[k].storage());
      bytes_of_arguments_ = bytes;
    }
    arguments[i] = py::none();
  }
}

void KeptInputs::keep_gradients(const py::sequence& given, int64_t max_bytes) {
  forget_gradients();
  std::vector<at::Tensor> kept;
  int64_t bytes = 0;
  for (const py::handle value : given) {
    const at::Tensor* const tensor = tensor_in(value);
    if (tensor != nullptr) {
      if (!KeptTensor::is_possible(*tensor) || may_be_added_to(*tensor)) return;
      bytes += bytes_of(*tensor);
    }
    if (bytes > max_bytes) return;
    kept.push_back(tensor == nullptr ? at::Tensor() : alias_of(*tensor));
  }
  gradients_ = std::move(kept);
  bytes_of_gradients_ = bytes;
}

void KeptInputs::release_returned(c10::ArrayRef<py::object> returned) {
  const auto is_kept = [this](const py::object& value) {
    const at::Tensor* const tensor = tensor_in(value);
    return tensor != nullptr && std::any_of(gradients_.begin(), gradients_.end(), [&](const at::Tensor& kept) {
             return kept.defined() && kept.is_alias_of(*tensor);
           });
  };
  if (std::any_of(returned.begin(), returned.end(), is_kept)) forget_gradients();
}

void KeptInputs::release_memory() {
  for (Argument& argument : arguments_) argument.tensor.release_memory();
  bytes_of_arguments_ = 0;
  forget_gradients();
}

void KeptInputs::forget_gradients() {
  gradients_.clear();
  bytes_of_gradients_ = 0;
}

std::string KeptInputs::take(bool is_backward) {
  put_back();
  if (is_backward && gradients_.empty()) return kGoneInputs;
  for (const auto& [index, tensor] : arguments_) {
    if (taken_.emplace_back(tensor.lock()).defined()) continue;
    put_back();
    if (tensor.is_gone()) return kGoneInputs;
    if (!tensor.is_weight()) return kOverwrittenInputs;
    return updated_weights(tensor.exceeded_limit());
  }
  return "";
}

void KeptInputs::restore(py::list& arguments) const {
  for (size_t i = 0; i < taken_.size(); ++i) arguments[arguments_[i].index] = py::cast(taken_[i]);
}

}  // namespace torchnan
