#include "origin/ask.h"

#include "watch/contain.h"

namespace torchnan {

Place ask_place(const Site& site, const Watch& watch) {
  Place place;
  if (!site.node.empty()) place.phase = Phase::kBackward;
  contain(watch, "telling where an operation ran", [&] { place = program().place(site, watch); });
  return place;
}

std::vector<Place> ask_places(const std::vector<Site>& sites, const Watch& watch) {
  std::vector<Place> places(sites.size());
  contain(watch, "telling where operations ran", [&] { places = program().places(sites, watch); });
  return places;
}

bool ask_is_loss_scaling(const Site& site, const Watch& watch) {
  bool answer = false;
  contain(watch, "telling a loss scaler", [&] { answer = program().is_loss_scaling(site, watch); });
  return answer;
}

std::optional<Owner> ask_owner(const c10::StorageImpl* storage, SiteId use, bool everywhere, const Watch& watch) {
  std::optional<Owner> owner;
  contain(watch, "telling whose a tensor is", [&] { owner = program().owner(storage, use, everywhere, watch); });
  return owner;
}

std::vector<Held> ask_held(const std::vector<at::Tensor>& tensors, const Watch& watch) {
  std::vector<Held> held;
  contain(watch, "telling what is still held", [&] { held = program().held(tensors); });
  return held;
}

}  // namespace torchnan
