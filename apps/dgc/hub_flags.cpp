#include "hub_flags.h"

#include "base/environment.h"
#include "dgc/error.h"
#include "hub/enrolment.h"
#include "hub/tls.h"

namespace dgc::app {

void HubFlags::add(CLI::App& command) {
  command.add_option("URL", url, "The hub, such as https://hub.example.org:7077")->required();
  command.add_option("--pin", pin,
                     "The hub's key, sha256:…, as it prints it (default: its certificate has to be "
                     "one that this system trusts)");
  command.add_option("--token-file", token_file, "Read the token there, not from DGC_TOKEN");
  command.add_flag("--insecure", insecure, "Allow http:// to this machine itself");
  command.add_flag("--insecure-anywhere", insecure_anywhere,
                   "With --insecure: allow http:// to other machines. Anybody between can read and "
                   "change everything");
}

hub::HubPlace HubFlags::place() const {
  hub::HubPlace place = hub::place_of(url, insecure);
  if (!place.tls) check_insecure("join", place.host, insecure, insecure_anywhere);
  if (!pin.empty() && !hub::is_pin(pin)) {
    throw Error(ErrorCode::invalid_argument, "join", "--pin " + pin, "is no pin",
                "it is sha256: and 64 hexadecimal digits, as the hub prints it");
  }
  place.pin = pin;
  return place;
}

std::string HubFlags::token() const {
  if (token_file.empty()) return variable("DGC_TOKEN").value_or("");
  return hub::read_token(token_file);
}

void check_insecure(const char* command, const std::string& host, bool insecure, bool anywhere) {
  if (!insecure || anywhere || hub::is_loopback(host)) return;
  throw Error(ErrorCode::invalid_argument, command, "--insecure",
              "is for addresses of this machine, and " + host + " is none",
              "leave it out; or add --insecure-anywhere, and anybody on the way can read and "
              "change everything");
}

}  // namespace dgc::app
