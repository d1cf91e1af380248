// The line that a hub's owner passes on, and what the commands of a hub's folder share.
#pragma once

#include <string>

namespace dgc::app {

/// Below the run's folder: journal, snapshots, certificate.
inline constexpr const char* kHubFolder = "hub";
/// In the run's folder: what `dgc serve` was told. Other runs have no such file.
inline constexpr const char* kChoicesFile = "hub.json";
/// Where the journal has Invitation::text(), for tokens that are made later.
inline constexpr const char* kInvitationFact = "invitation";

struct Invitation {
  std::string url, pin;
  bool own_model = false;  ///< members come from PyTorch

  /// What to paste: "DGC_TOKEN=… dgc join https://… --pin …", or, with own_model, the token for the
  /// environment and the call for the script.
  std::string command(const std::string& token) const;
  /// As it is kept.
  std::string text() const { return url + "\n" + pin + (own_model ? "\nown model" : ""); }
  static Invitation from(const std::string& text);
};

}  // namespace dgc::app
