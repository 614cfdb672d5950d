// What is asked of the host for a report. A question that fails leaves its answer open; the report is made without it.
#pragma once

#include <optional>
#include <vector>

#include "host/program.h"
#include "watch/watch.h"

namespace torchnan {

Place ask_place(const Site& site, const Watch& watch);
std::vector<Place> ask_places(const std::vector<Site>& sites, const Watch& watch);
bool ask_is_loss_scaling(const Site& site, const Watch& watch);
std::optional<Owner> ask_owner(const c10::StorageImpl* storage, SiteId use, bool everywhere, const Watch& watch);
std::vector<Held> ask_held(const std::vector<at::Tensor>& tensors, const Watch& watch);

}  // namespace torchnan
