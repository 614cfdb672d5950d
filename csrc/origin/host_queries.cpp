#include "origin/host_queries.h"

#include "detection/error_containment.h"

namespace torchnan {

Place query_site(const Site& site, const DetectionSession& session) {
  Place place;
  if (!site.node.empty()) place.phase = Phase::kBackward;
  contain(session, "telling where an operation ran", [&] { place = program().place(site, session); });
  return place;
}

std::vector<Place> query_sites(const std::vector<Site>& sites, const DetectionSession& session) {
  std::vector<Place> places(sites.size());
  contain(session, "telling where operations ran", [&] { places = program().places(sites, session); });
  return places;
}

bool ask_is_loss_scaling(const Site& site, const DetectionSession& session) {
  bool answer = false;
  contain(session, "telling a loss scaler", [&] { answer = program().is_loss_scaling(site, session); });
  return answer;
}

std::optional<Owner> ask_owner(const c10::StorageImpl* storage, SiteId use, bool everywhere,
                               const DetectionSession& session) {
  std::optional<Owner> owner;
  contain(session, "telling whose a tensor is", [&] { owner = program().owner(storage, use, everywhere, session); });
  return owner;
}

std::vector<Held> ask_held(const std::vector<at::Tensor>& tensors, const DetectionSession& session) {
  std::vector<Held> held;
  contain(session, "telling what is still held", [&] { held = program().held(tensors); });
  return held;
}

}  // namespace torchnan
