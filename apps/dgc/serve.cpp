// dgc serve: the hub of a run that others join and leave. Needs no libtorch and no data.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"
#include "command.h"
#include "dgc/error.h"
#include "hub/client.h"
#include "hub/server.h"
#include "hub_flags.h"
#include "process/stop_signal.h"
#include "process/terminal.h"
#include "report/compare.h"
#include "report/page.h"
#include "settings_flags.h"
#include "token.h"
#include "torch_part.h"
#include "train/changeable.h"
#include "train/hub_record.h"
#include "train/recipe.h"
#include "train/relevant.h"
#include "train/run_folder.h"

namespace dgc::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

/// A run that is over is served so long to those who have not heard of it, at the most.
constexpr auto kAfterTheEnd = std::chrono::seconds(60);
/// And so long to nobody, for the page to show it.
constexpr auto kQuietEnd = std::chrono::seconds(3);

struct Options {
  SettingsFlags settings;
  train::HubChoices choices;
  std::string out, resume, from;
  std::string address = "0.0.0.0", host, certificate, key, deadline = "auto";
  std::uint16_t port = 7077;
  bool insecure = false, insecure_anywhere = false, stay = false, quiet = false, as_json = false;
  CLI::App* command = nullptr;

  bool given(const char* name) const { return command->count(name) > 0; }
};

[[noreturn]] void refuse(const std::string& what, const std::string& problem,
                         const std::string& hint) {
  throw Error(ErrorCode::invalid_argument, "serve", what, problem, hint);
}

/// What a run is: said when it begins, and read back when it goes on.
struct What {
  fs::path folder;
  json given;
  train::Settings settings;
  train::HubChoices choices;
};

void take_deadline(const Options& o, train::HubChoices& choices) {
  if (o.deadline == "auto") {
    choices.deadline = 0.0;
    return;
  }
  char* end = nullptr;
  choices.deadline = std::strtod(o.deadline.c_str(), &end);
  if (*end != '\0' || !(choices.deadline > 0.0 && choices.deadline <= 86'400.0)) {
    refuse("--deadline " + o.deadline, "is no number of seconds", "such as 20, or auto");
  }
}

What new_run(const Options& o) {
  What what{.given = o.settings.given(), .choices = o.choices};
  take_deadline(o, what.choices);
  if (o.choices.own_model) {
    if (what.given.contains("recipe")) {
      refuse("--own-model", "is for runs without a recipe", "leave one of them out");
    }
    if (!what.given.contains("lr")) {
      refuse("--own-model", "needs a --lr: no recipe says how fast to learn", "such as --lr 0.1");
    }
    what.given["recipe"] = "synthetic";
  }
  what.settings = train::resolve(what.given);
  what.folder = o.out.empty() ? train::new_run_folder(what.settings.recipe) : fs::path(o.out);
  return what;
}

What old_run(const Options& o) {
  What what{.folder = o.resume, .given = o.settings.given()};
  what.settings = train::resolve(train::resumed_settings(what.folder, what.given));
  const auto kept = train::read_json(what.folder / kChoicesFile);
  if (!kept) {
    throw Error(ErrorCode::io, "serve", (what.folder / kChoicesFile).string(),
                "there is no run of a hub", "`dgc train --resume` continues other runs");
  }
  for (const char* name : {"--down", "--own-model", "--private-data", "--save-every", "--from"}) {
    if (o.given(name)) refuse(name, "cannot change in the middle of a run", "leave it out");
  }
  what.choices = train::hub_choices_from(json::parse(kept->dump()), kChoicesFile);
  if (o.given("--quorum")) what.choices.quorum = o.choices.quorum;
  if (o.given("--deadline")) take_deadline(o, what.choices);
  if (o.given("--oldest")) what.choices.oldest = o.choices.oldest;
  if (o.given("--norm-bound")) what.choices.norm_bound = o.choices.norm_bound;
  if (o.given("--lost-after")) what.choices.lost_after = o.choices.lost_after;
  if (o.given("--snapshot-every")) what.choices.snapshot_every = o.choices.snapshot_every;
  return what;
}

/// Of this machine, for others: its name, or the address that the hub listens on.
std::string host_for_others(const Options& o) {
  if (!o.host.empty()) return o.host;
  if (o.address != "0.0.0.0" && o.address != "::") {
    return o.address.find(':') == std::string::npos ? o.address : "[" + o.address + "]";
  }
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Members come back to the same place: it is said again, as it was.
std::string to_go_on(const Options& o, const fs::path& folder) {
  std::string line = fmt::format("dgc serve --resume {}", folder.string());
  const std::pair<const char*, std::string> places[] = {
      {"--address", o.address},   {"--port", fmt::format("{}", o.port)},
      {"--host", o.host},         {"--certificate", o.certificate},
      {"--key", o.key},           {"--insecure", ""},
      {"--insecure-anywhere", ""}};
  for (const auto& [name, value] : places) {
    if (!o.given(name)) continue;
    line += fmt::format(" {}{}{}", name, value.empty() ? "" : " ", value);
  }
  return line;
}

std::optional<hub::Identity> identity_for(const Options& o, const fs::path& folder) {
  if (o.certificate.empty() != o.key.empty()) {
    refuse(o.key.empty() ? "--certificate" : "--key", "comes with the other of the two",
           "give both --certificate and --key, or none: then the hub makes its own");
  }
  if (o.insecure) return std::nullopt;
  if (!o.certificate.empty()) return hub::Identity{.certificate = o.certificate, .key = o.key};
  return hub::identity_in(folder);
}

/// A new run that cannot be served (its port is taken, say) leaves nothing behind.
class NewFolder {
 public:
  NewFolder(fs::path folder, std::string mode, bool is_new)
      : folder_(std::move(folder)), mode_(std::move(mode)), undo_(is_new) {
    if (!is_new) return;
    made_ = !fs::exists(folder_);
    if (fs::exists(folder_ / kHubFolder)) {
      undo_ = false;
      throw Error(ErrorCode::io, "serve", folder_.string(), "has a run already",
                  "go on with --resume, or choose another --out");
    }
    train::begin_run(folder_);
  }
  ~NewFolder() {
    if (!undo_) return;
    std::error_code error;
    fs::remove_all(folder_ / kHubFolder, error);
    for (const char* file : {kChoicesFile, train::kConfigFile}) fs::remove(folder_ / file, error);
    fs::remove(folder_ / mode_ / train::kMetricsFile, error);
    fs::remove(folder_ / mode_, error);  // where it is empty
    if (made_) fs::remove(folder_, error);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  void keep() noexcept { undo_ = false; }

 private:
  fs::path folder_;
  std::string mode_;
  bool undo_, made_ = false;
};

/// What people and programs need to join, on stdout whatever else is said.
void print_invitation(const Options& o, const What& what, const Invitation& line,
                      const std::string& invite, const std::string& look) {
  if (o.as_json) {
    fmt::print("{}\n", json{{"url", line.url},
                            {"pin", line.pin},
                            {"token", invite},
                            {"read_token", look},
                            {"run", what.folder.string()}}
                           .dump());
  } else if (invite.empty()) {
    fmt::print(
        "goes on with {} at {}\nTokens are as they were; `dgc token add NAME --run {}` makes "
        "another.\n",
        what.folder.string(), line.url, what.folder.string());
  } else {
    fmt::print("On each machine that is to train{}:\n  {}\nTo look at the run:\n  {}/#{}\n",
               line.own_model ? ", this in the environment, and this in the script" : "",
               line.command(invite), line.url, look);
  }
  std::fflush(stdout);
}

void show(const What& what, const train::Summary& summary, bool as_json) {
  const report::Run run = report::read_run(what.folder);
  report::write_report(std::span(&run, 1), what.folder / train::kReportFile);
  if (as_json) {
    fmt::print("{}\n", train::to_json(summary).dump());
  } else {
    fmt::print("\n{}\nreport: {}\n", process::table(report::comparison_rows(run)),
               (what.folder / train::kReportFile).string());
  }
}

int run(const Options& o) {
  const bool resumes = !o.resume.empty();
  if (resumes && !o.out.empty()) {
    refuse("--out", "a run that goes on stays where it is", "leave it out");
  }
  // First: it may start this program anew.
  const hub::Bytes initial = o.from.empty() ? hub::Bytes() : initial_parameters(o.from);
  What what = resumes ? old_run(o) : new_run(o);
  train::HubRun plan = train::hub_run(what.settings, what.given, what.choices);
  const fs::path folder = what.folder / kHubFolder;
  check_insecure("serve", o.address, o.insecure, o.insecure_anywhere);
  NewFolder made(what.folder, plan.mode, !resumes);
  const train::RunLock lock(what.folder, "serve");
  fs::create_directories(folder);
  const auto identity = identity_for(o, folder);
  hub::Journal journal(folder / hub::kJournalFile, /*create=*/!resumes);
  train::write_json(what.folder / kChoicesFile, train::to_json(what.choices));
  if (!resumes) train::write_json(what.folder / train::kConfigFile, train::relevant(what.settings));
  if (!initial.empty()) {
    AtomicFile file(folder / hub::kInitialFile);
    file.write(initial);
    file.commit();
  }

  process::note_stop_signals();
  train::Console console(o.quiet);
  train::HubRecord record({.folder = what.folder / plan.mode,
                           .settings = what.settings,
                           .mode = plan.mode,
                           .rounds = plan.plan.rounds},
                          journal, console);
  for (const auto& note : journal.evaluations()) plan.evaluated(note.loss);
  hub::Hub* serving = nullptr;
  hub::Hub hub(folder, journal, plan.options, plan.plan,
               {.committed =
                    [&](const hub::CommitLine& line) {
                      record.set_model(serving->replica()->model(), serving->plan().positions);
                      record.committed(line);
                    },
                .evaluated =
                    [&](const hub::EvaluationNote& note) {
                      plan.evaluated(note.loss);
                      record.evaluated(note);
                    },
                .said = [&](const std::string& line) { console.say(line); }});
  serving = &hub;
  hub::Server server(hub, {.address = o.address, .port = o.port, .identity = identity});

  made.keep();

  const Invitation line{.url = fmt::format("{}://{}:{}", identity ? "https" : "http",
                                           host_for_others(o), server.port()),
                        .pin = identity ? hub::pin_of(identity->certificate) : "",
                        .own_model = what.choices.own_model};
  journal.set_fact(kInvitationFact, line.text());
  const double now = static_cast<double>(std::time(nullptr));
  const std::string invite = resumes ? "" : journal.add_token("join", hub::Right::invite, now);
  const std::string look = resumes ? "" : journal.add_token("look", hub::Right::read, now);
  console.say(fmt::format("dgc serve: {} in {}, listening on {}:{}; {}",
                          what.choices.own_model ? "a model of its members'" : what.settings.recipe,
                          what.folder.string(), o.address, server.port(), plan.reason));
  print_invitation(o, what, line, invite, look);

  std::optional<Clock::time_point> finished;
  server.run([&] {
    if (process::stop_signal != 0 || !hub.failure().empty()) return true;
    if (!hub.finished() || o.stay) return false;
    if (!finished) finished = Clock::now();
    const auto since = Clock::now() - *finished;
    return since > kAfterTheEnd || (since > kQuietEnd && hub.present() == 0);
  });
  if (!hub.failure().empty()) {
    throw Error(ErrorCode::io, "serve", folder.string(), hub.failure(),
                "mend it and go on with: " + to_go_on(o, what.folder));
  }
  hub.save();
  if (hub.replica() != nullptr) record.set_model(hub.replica()->model(), hub.plan().positions);
  const std::string hash =
      hub.replica() != nullptr ? fmt::format("{:016x}", hub.replica()->hash()) : "";
  const train::Summary summary = record.finish(hub.finished(), hash);
  show(what, summary, o.as_json);
  if (hub.finished()) return 0;
  console.say("stopped; members wait. Go on with: " + to_go_on(o, what.folder));
  return process::stopped_by(process::stop_signal);
}

}  // namespace

void add_serve(CLI::App& app) {
  auto* command = app.add_subcommand("serve", "Serve a run that others join and leave");
  command->footer(
      "One process with one port. It prints the line that others paste: `dgc join …`. Settings "
      "are\n"
      "those of `dgc train`; --workers is how many members the batch is meant for. Ctrl-C stops, "
      "and\n"
      "--resume goes on; members come back by themselves. docs/hub.md has a "
      "tutorial.\n\nExamples:\n"
      "  dgc serve fashion --preset small --out runs/hub\n"
      "  dgc serve gpt --workers 8 --deadline 30 --quorum 5 --out runs/gpt\n"
      "  dgc serve --resume runs/gpt\n"
      "  dgc serve --own-model --lr 0.1 --batch 256 --workers 8 --steps 5000 --out runs/mine\n"
      "                                               members bring a model of PyTorch: "
      "dgc.join()\n"
      "  dgc serve fashion --address 127.0.0.1 --insecure --out runs/try        to try it here");
  auto o = std::make_shared<Options>();
  o->command = command;
  o->settings.add_recipe(*command);
  o->settings.add_config(*command);
  o->settings.add_name(*command, "--out", o->out,
                       "Folder to write the run to (default: runs/RECIPE-TIME)");
  o->settings.add_name(*command, "--resume", o->resume, "Go on with the run in this folder");
  command->add_option("--from", o->from,
                      "Begin with the parameters of a checkpoint of `dgc train`: a folder "
                      "RUN/MODE/checkpoints (default: the first member's)");
  command->add_option("--address", o->address, "Address to listen on")->capture_default_str();
  command->add_option("--port", o->port, "Port to listen on; 0: any")->capture_default_str();
  command->add_option("--host", o->host,
                      "What others call this machine, for the line that is printed (default: its "
                      "name)");
  command
      ->add_option("--quorum", o->choices.quorum,
                   "Members that are enough at the deadline; 0: half of those who are active")
      ->check(CLI::Range(0, 100'000));
  command
      ->add_option("--deadline", o->deadline,
                   "Seconds that a round waits for the slow; auto: by what rounds take")
      ->capture_default_str();
  command
      ->add_option("--oldest", o->choices.oldest,
                   "A message that comes late still counts if it is not older than so many rounds")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  command
      ->add_option("--down", o->choices.down,
                   "What goes to members: forward: everybody's messages; select: one message, "
                   "which the hub selects; auto: by --workers")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "forward", "select"}));
  command->add_flag("--private-data", o->choices.private_data,
                    "Members have data of their own: nothing is shared out; needs --steps");
  command->add_flag("--own-model", o->choices.own_model,
                    "Members bring model and data, by dgc.join() of the PyTorch package");
  command
      ->add_option("--norm-bound", o->choices.norm_bound,
                   "Scale an update that is longer than so many times the round's median; 0: off")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--lost-after", o->choices.lost_after,
                   "Seconds of silence after which others do what a member has not saved")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--save-every", o->choices.save_every,
                   "Rounds after which members save what they have not sent")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  command
      ->add_option("--snapshot-every", o->choices.snapshot_every,
                   "Rounds after which the hub saves all parameters; commits are kept since the "
                   "last but one")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40));
  command->add_option("--certificate", o->certificate,
                      "Certificate to show, PEM (default: one that is made at the first start)");
  command->add_option("--key", o->key, "Its private key, PEM");
  command->add_flag("--insecure", o->insecure, "Without TLS; for addresses of this machine");
  command->add_flag(
      "--insecure-anywhere", o->insecure_anywhere,
      "With --insecure: on any address. Anybody between can read and change everything");
  command->add_flag("--stay", o->stay, "Serve the page after the end, too");
  command->add_flag("--quiet", o->quiet, "Print no progress");
  command->add_flag("--json", o->as_json, "Print what is needed to join, and the summary, as JSON");
  o->settings.add_flags(*command);
  command->callback([o] {
    const int status = run(*o);
    if (status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace dgc::app
