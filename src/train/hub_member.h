// A member of a run over a hub, as `dgc join` is one: it computes what the hub leases to it, with
// the task of the hub's recipe.
#pragma once

#include <csignal>
#include <filesystem>
#include <string>

#include "hub/client.h"
#include "train/console.h"
#include "train/settings.h"

namespace dgc::train {

struct JoinRequest {
  hub::HubPlace place;
  std::string token;            ///< as it was given; empty where the folder has one already
  std::filesystem::path state;  ///< folder for what is kept between two starts
  std::string name;             ///< that is wished for
  /// What may be this machine's own: data, train, valid, test, threads; by the fields' names.
  std::string own_settings;
  const volatile std::sig_atomic_t* stop = nullptr;  ///< not 0: leave after the round
};

struct JoinedRun {
  bool finished = false;  ///< the run is over; else this member has left
  bool told = true;       ///< the hub knows that it has left
  std::string name;
  std::uint64_t round = 0, messages = 0, examples = 0;
  std::uint64_t bytes_up = 0, bytes_down = 0;
  double loss = 0.0;
  std::string parameters_hash;
};

/// Until the run is over, or a signal came. Throws Error.
JoinedRun join_hub(const JoinRequest& request, Console& console);

}  // namespace dgc::train
