// dgc status: how a hub's run is going, in the terminal.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/units.h"
#include "command.h"
#include "dgc/error.h"
#include "hub/client.h"
#include "hub/packet.h"
#include "hub_flags.h"
#include "process/stop_signal.h"
#include "process/terminal.h"

namespace dgc::app {
namespace {

using nlohmann::json;

struct Options {
  HubFlags hub;
  double watch = 0.0;
  bool as_json = false;
};

json status_of(hub::Client& client, const std::string& url) {
  const hub::Answer answer = client.ask({.method = "GET", .path = "/v1/status", .body = {}},
                                        [] { return process::stop_signal != 0; });
  const std::string text(reinterpret_cast<const char*>(answer.body.data()), answer.body.size());
  if (answer.status == 200) {
    if (json status = json::parse(text, nullptr, false); status.is_object()) return status;
  }
  try {
    if (const auto error = hub::error_in(hub::read_packet(answer.body))) throw *error;
  } catch (const Error& error) {
    if (error.operation() == "hub") throw;
  }
  throw Error(ErrorCode::configuration_mismatch, "status", url,
              fmt::format("answers {}, and not as a hub does", answer.status),
              "is that the hub's address?");
}

std::string text_of(const json& status) {
  std::string text = fmt::format(
      "run {}: {} {}, round {}{}, epoch {:.2f} of {:.4g}, {:.1f} rounds/min, members: {}, {} up, "
      "{} down\n",
      status.at("run").get<std::string>().substr(0, 8),
      status.at("recipe").value("recipe", "").empty() ? std::string("a model of its members'")
                                                      : status["recipe"].value("recipe", ""),
      status.at("recipe").value("mode", ""), status.at("round").get<std::uint64_t>(),
      status.at("rounds").get<std::uint64_t>() > 0
          ? fmt::format(" of {}", status["rounds"].get<std::uint64_t>())
          : "",
      status.at("epoch").get<double>(), status.at("epochs").get<double>(),
      status.at("rounds_per_minute").get<double>(), status.at("active").get<int>(),
      bytes_text(status.at("bytes_up").get<double>()),
      bytes_text(status.at("bytes_down").get<double>()));
  if (!status.at("failure").get<std::string>().empty()) {
    text += "failed: " + status["failure"].get<std::string>() + "\n";
  } else if (status.at("finished").get<bool>()) {
    text += "finished\n";
  } else if (status.at("active").get<int>() == 0) {
    text += "waits for members\n";
  }
  if (!status.at("evaluations").empty()) {
    const json& last = status["evaluations"].back();
    text += fmt::format("round {}: loss {:.4f}, {} {:.2f}\n", last.at("round").get<std::uint64_t>(),
                        last.at("loss").get<double>(), last.at("name").get<std::string>(),
                        last.at("metric").get<double>());
  }
  std::vector<std::vector<std::string>> rows = {{"member", "state", "from", "round trip", "rounds",
                                                 "missed", "late", "examples/s", "up", "down",
                                                 "not saved"}};
  for (const json& m : status.at("members")) {
    rows.push_back({m.at("name").get<std::string>(), m.at("state").get<std::string>(),
                    m.at("origin").get<std::string>(),
                    fmt::format("{:.0f} ms", 1e3 * m.at("round_trip").get<double>()),
                    m.at("rounds").dump(), m.at("missed").dump(), m.at("late").dump(),
                    fmt::format("{:.0f}", m.at("examples_per_second").get<double>()),
                    bytes_text(m.at("bytes_up").get<double>()),
                    bytes_text(m.at("bytes_down").get<double>()), m.at("unsaved").dump()});
  }
  if (rows.size() > 1) text += "\n" + process::table(rows);
  return text;
}

int run(const Options& o) {
  process::note_stop_signals();
  const hub::HubPlace place = o.hub.place();
  const std::string token = o.hub.token();
  if (token.empty()) {
    throw Error(ErrorCode::invalid_argument, "status", "DGC_TOKEN", "is not set",
                "it is what comes after # in the link that the hub prints; or --token-file FILE");
  }
  hub::Client client(place, token);
  while (process::stop_signal == 0) {
    json status;
    try {
      status = status_of(client, o.hub.url);
    } catch (const hub::Unreachable& error) {
      if (process::stop_signal != 0) break;
      throw Error(ErrorCode::io, "status", o.hub.url, error.what(), "is the hub running?");
    }
    fmt::print("{}\n", o.as_json ? status.dump() : text_of(status));
    std::fflush(stdout);
    if (o.watch <= 0.0) return 0;
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(o.watch);
    while (process::stop_signal == 0 && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  return process::stopped_by(process::stop_signal);
}

}  // namespace

void add_status(CLI::App& app) {
  auto* command = app.add_subcommand("status", "Show how a hub's run is going");
  command->footer(
      "The token is in DGC_TOKEN or a file: one with the right to read, which is what comes after "
      "#\n"
      "in the link that the hub prints, or a member's.\n\nExamples:\n"
      "  DGC_TOKEN=… dgc status https://hub.example.org:7077 --pin sha256:…\n"
      "  DGC_TOKEN=… dgc status https://hub.example.org:7077 --pin sha256:… --watch 5\n"
      "  dgc status https://hub.example.org:7077 --token-file token --json");
  auto o = std::make_shared<Options>();
  o->hub.add(*command);
  command->add_option("--watch", o->watch, "Again every so many seconds, until Ctrl-C")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", o->as_json, "Print everything that the page shows, as JSON");
  command->callback([o] {
    const int status = run(*o);
    if (status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace dgc::app
