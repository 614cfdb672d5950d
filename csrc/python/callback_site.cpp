#include "python/bindings.h"

#include <memory>
#include <optional>
#include <utility>

#include "intercept/session_lifetime.h"
#include "origin/current_call_site.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// The location where a callback was passed to a future.
class CallbackSite {
 public:
  explicit CallbackSite(std::shared_ptr<DetectionSession> session)
      : session_(std::move(session)),
        thread_(ThreadState::current().id()),
        stack_(current_nested_stack()),
        node_(current_node_site()) {}

  // Null if this thread has no session.
  static std::shared_ptr<CallbackSite> here() {
    auto session = ThreadState::current().shared_session();
    return session == nullptr ? nullptr : std::make_shared<CallbackSite>(std::move(session));
  }

  // Calls the callback as part of that location: with its session, its backward node and its stack.
  py::object run(const py::object& callback, const py::args& args) const {
    if (ThreadState::current().id() == thread_ || !session_->is_open()) return callback(*args);
    const OnBehalf inside(*this);
    return callback(*args);
  }

 private:
  class OnBehalf {
   public:
    explicit OnBehalf(const CallbackSite& site) : session_(site.session_) {
      is_inside_ = run_contained(*session_, "following a callback", [&] {
        enter_session(session_);
        set_replayed_node(site.node_);
        set_outer_stack(site.stack_);
      });
    }
    ~OnBehalf() {
      if (!is_inside_) return;
      set_outer_stack(0);
      set_replayed_node(std::nullopt);
      leave_session(session_);
    }
    OnBehalf(const OnBehalf&) = delete;
    OnBehalf& operator=(const OnBehalf&) = delete;

   private:
    const std::shared_ptr<DetectionSession> session_;
    bool is_inside_ = false;
  };

  const std::shared_ptr<DetectionSession> session_;
  const uint64_t thread_;
  const SiteId stack_;
  const std::optional<NodeSite> node_;
};

}  // namespace

void bind_callback_sites(py::module_& m) {
  py::class_<CallbackSite, std::shared_ptr<CallbackSite>>(m, "CallbackSite")
      .def_static("here", &CallbackSite::here)
      .def("run", &CallbackSite::run, py::arg("callback"));
}

}  // namespace torchnan
