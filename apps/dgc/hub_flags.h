// How commands reach a hub: its address, its pin, and a token that no list of processes shows.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "hub/client.h"

namespace dgc::app {

struct HubFlags {
  std::string url, pin, token_file;
  bool insecure = false, insecure_anywhere = false;

  void add(CLI::App& command);
  /// Throws Error(invalid_argument).
  hub::HubPlace place() const;
  /// Of --token-file or DGC_TOKEN; empty where there is neither. Throws Error(io).
  std::string token() const;
};

/// Refuses plain HTTP beyond this machine unless it was said twice. `command` is for the error.
void check_insecure(const char* command, const std::string& host, bool insecure, bool anywhere);

}  // namespace dgc::app
