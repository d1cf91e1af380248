// dgc token: who may come in. Works on the folder of a run, whether its hub is running or not.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "dgc/error.h"
#include "hub/hub.h"
#include "hub/journal.h"
#include "process/terminal.h"
#include "token.h"

namespace dgc::app {
namespace {

namespace fs = std::filesystem;

hub::Journal journal_of(const std::string& folder) {
  const fs::path file = fs::path(folder) / kHubFolder / hub::kJournalFile;
  if (!fs::exists(file)) {
    throw Error(ErrorCode::io, "token", folder, "is not the folder of a hub's run",
                "give the --out of `dgc serve`");
  }
  return {file, /*create=*/false};
}

hub::Right right_of(const std::string& name) {
  for (const hub::Right right : {hub::Right::work, hub::Right::invite}) {
    if (name == hub::name_of(right)) return right;
  }
  return hub::Right::read;
}

void add(const std::string& folder, const std::string& name, const std::string& right,
         bool as_json) {
  hub::Journal journal = journal_of(folder);
  for (const hub::TokenLine& known : journal.tokens()) {
    if (known.name == name && !known.revoked) {
      throw Error(ErrorCode::invalid_argument, "token", fmt::format("name '{}'", name),
                  "has a token already", "revoke it first, or choose another name");
    }
  }
  const std::string token =
      journal.add_token(name, right_of(right), static_cast<double>(std::time(nullptr)));
  const Invitation line = Invitation::from(journal.fact(kInvitationFact).value_or(""));
  if (as_json) {
    const nlohmann::json all = {
        {"name", name}, {"right", right}, {"token", token}, {"url", line.url}, {"pin", line.pin}};
    fmt::print("{}\n", all.dump(2));
  } else if (right == "read") {
    fmt::print("{}/#{}\n", line.url, token);
  } else {
    fmt::print("{}\n", line.command(token));
  }
}

void list(const std::string& folder, bool as_json) {
  std::vector<std::vector<std::string>> rows = {{"name", "right", "made", "state"}};
  auto all = nlohmann::json::array();
  for (const hub::TokenLine& line : journal_of(folder).tokens()) {
    const auto made = fmt::format("{:%F %T}", fmt::gmtime(static_cast<std::time_t>(line.created)));
    rows.push_back(
        {line.name, std::string(name_of(line.right)), made, line.revoked ? "revoked" : "good"});
    all.push_back({{"name", line.name},
                   {"right", name_of(line.right)},
                   {"created", line.created},
                   {"revoked", line.revoked}});
  }
  fmt::print("{}\n", as_json ? all.dump(2) : process::table(rows));
}

void revoke(const std::string& folder, const std::string& name) {
  if (!journal_of(folder).revoke_token(name)) {
    throw Error(ErrorCode::invalid_argument, "token", fmt::format("name '{}'", name),
                "has no token", "`dgc token list` shows all");
  }
  fmt::print("revoked: the next request with it is refused\n");
}

}  // namespace

std::string Invitation::command(const std::string& token) const {
  const bool plain = url.starts_with("http://");
  if (own_model) {
    return fmt::format("DGC_TOKEN={}    dgc.join(\"{}\", model, data=…{})", token, url,
                       pin.empty() ? "" : fmt::format(", pin=\"{}\"", pin));
  }
  return fmt::format("DGC_TOKEN={} dgc join {}{}{}", token, url, pin.empty() ? "" : " --pin " + pin,
                     plain ? " --insecure" : "");
}

Invitation Invitation::from(const std::string& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string::npos) return {};
  const std::size_t end_of_pin = text.find('\n', end + 1);
  return {.url = text.substr(0, end),
          .pin = text.substr(end + 1, end_of_pin - end - 1),
          .own_model = end_of_pin != std::string::npos};
}

void add_token(CLI::App& app) {
  auto* command = app.add_subcommand("token", "Let people into a hub's run, or not any more");
  command->require_subcommand(1);
  command->footer(
      "A token is shown once, when it is made; the hub keeps a hash of it. It can be used at "
      "once.\n"
      "\nExamples:\n"
      "  dgc token add anna --run runs/hub                 the line for anna to paste\n"
      "  dgc token add guests --right invite --run runs/hub   one for many: each gets a token\n"
      "  dgc token add screen --right read --run runs/hub  a link to look at the run\n"
      "  dgc token list --run runs/hub\n"
      "  dgc token revoke anna --run runs/hub");
  struct Options {
    std::string folder, name, right = "work";
    bool as_json = false;
  };
  auto o = std::make_shared<Options>();
  const auto sub = [&](const char* name, const char* what, bool named) {
    auto* one = command->add_subcommand(name, what);
    if (named) one->add_option("NAME", o->name, "Whose")->required();
    one->add_option("--run", o->folder, "Folder of the run: the --out of `dgc serve`")->required();
    return one;
  };
  auto* adds = sub("add", "Make a token", true);
  adds->add_option("--right", o->right,
                   "work: train; invite: get tokens of their own, for many; read: look at the run")
      ->capture_default_str()
      ->check(CLI::IsMember({"work", "invite", "read"}));
  adds->add_flag("--json", o->as_json, "Print it as JSON");
  adds->callback([o] { add(o->folder, o->name, o->right, o->as_json); });
  auto* lists = sub("list", "Show all tokens, without their texts", false);
  lists->add_flag("--json", o->as_json, "Print them as JSON");
  lists->callback([o] { list(o->folder, o->as_json); });
  sub("revoke", "Make a token void", true)->callback([o] { revoke(o->folder, o->name); });
}

}  // namespace dgc::app
