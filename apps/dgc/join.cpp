// dgc join: a member of a run that a hub serves.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "command.h"
#include "hub/journal.h"
#include "hub_flags.h"
#include "torch_part.h"

namespace dgc::app {
namespace {

namespace fs = std::filesystem;

struct Options {
  HubFlags hub;
  std::string name, state, data, train, valid, test;
  int threads = 0;
  bool quiet = false, as_json = false;
};

/// Letters, digits, '-' and '_' of this machine's name.
std::string machine_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string text(name.data());
  text.resize(std::min(text.find('.'), text.size()));
  for (char& c : text) {
    if (!hub::is_name(std::string_view(&c, 1))) c = '-';
  }
  return text.empty() ? "member" : text.substr(0, hub::kLongestWish);
}

fs::path default_state(const hub::HubPlace& place, const std::string& name) {
  fs::path base;
  if (const auto state = variable("XDG_STATE_HOME")) {
    base = *state;
  } else if (const auto home = variable("HOME")) {
    base = fs::path(*home) / ".local" / "state";
  } else {
    base = ".";
  }
  std::string host = place.host;
  std::replace(host.begin(), host.end(), ':', '-');
  return base / "dgc" / fmt::format("{}-{}", host, place.port) / name;
}

int run(const Options& o) {
  JoinJob job{.quiet = o.quiet, .as_json = o.as_json};
  job.request.place = o.hub.place();
  job.request.token = o.hub.token();
  job.request.name = o.name.empty() ? machine_name() : o.name;
  if (!hub::is_name(job.request.name) || job.request.name.size() > hub::kLongestWish) {
    throw Error(ErrorCode::invalid_argument, "join", "--name " + o.name, "is no name of a member",
                "use up to 56 letters, digits, '-' and '_'");
  }
  job.request.state =
      o.state.empty() ? default_state(job.request.place, job.request.name) : fs::path(o.state);
  nlohmann::json own = nlohmann::json::object();
  const std::pair<const char*, const std::string*> texts[] = {
      {"data", &o.data}, {"train", &o.train}, {"valid", &o.valid}, {"test", &o.test}};
  for (const auto& [field, value] : texts) {
    if (!value->empty()) own[field] = *value;
  }
  if (o.threads > 0) own["threads"] = o.threads;
  job.request.own_settings = own.dump();
  return join_here(job);
}

}  // namespace

void add_join(CLI::App& app) {
  auto* command = app.add_subcommand("join", "Train with others, over a hub");
  command->footer(
      "The hub says what is trained, and prints the line to paste here. The token is in DGC_TOKEN\n"
      "or a file, as arguments can be seen by others. Only outgoing connections are made; lost "
      "ones\n"
      "are made again. Ctrl-C leaves after the round, and nothing is lost; the same command comes\n"
      "back. What has not been sent is kept in --state.\n\nExamples:\n"
      "  DGC_TOKEN=… dgc join https://hub.example.org:7077 --pin sha256:…\n"
      "  dgc join https://hub.example.org:7077 --pin sha256:… --token-file token --data ~/cifar10\n"
      "  dgc join https://hub.example.org:7077 --name second    another member on this machine");
  auto o = std::make_shared<Options>();
  o->hub.add(*command);
  command->add_option("--name", o->name,
                      "What this member is called (default: the machine's name)");
  command->add_option("--state", o->state,
                      "Folder for what is kept between two starts (default: one for each hub and "
                      "name below ~/.local/state/dgc)");
  command->add_option("--data", o->data,
                      "Folder with the data (default: where `dgc data` finds it)");
  command->add_option("--train", o->train, "Text file, or manifest of recordings, to train on");
  command->add_option("--valid", o->valid, "The same, for validation");
  command->add_option("--test", o->test, "The same, for the test after training");
  command->add_option("--threads", o->threads, "Threads to compute with (default: all cores)")
      ->check(CLI::Range(0, 1024));
  command->add_flag("--quiet", o->quiet, "Print no progress");
  command->add_flag("--json", o->as_json, "Print what came out as JSON");
  command->callback([o] {
    const int status = run(*o);
    if (status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace dgc::app
