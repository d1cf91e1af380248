// dgc inspect of a hub's run: what it has written down, done again.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "hub/audit.h"
#include "hub/hub.h"
#include "inspect.h"
#include "process/terminal.h"
#include "token.h"

namespace dgc::app {

bool show_hub(const std::filesystem::path& directory, bool as_json) {
  std::filesystem::path folder = directory;
  if (!std::filesystem::exists(folder / hub::kJournalFile)) folder /= kHubFolder;
  if (!std::filesystem::exists(folder / hub::kJournalFile)) return false;
  const hub::Audit found = hub::audit(folder);
  std::vector<std::vector<std::string>> rows = {{"member", "messages", "examples", "last message"}};
  nlohmann::ordered_json members = nlohmann::ordered_json::object();
  for (const auto& [name, member] : found.members) {
    rows.push_back(
        {name, grouped(member.messages), grouped(member.examples), grouped(member.last)});
    members[name] = {
        {"messages", member.messages}, {"examples", member.examples}, {"last", member.last}};
  }
  if (as_json) {
    const nlohmann::ordered_json all = {{"kind", "hub"},
                                        {"run", found.run},
                                        {"from", found.from},
                                        {"to", found.to},
                                        {"finished", found.finished},
                                        {"snapshots", found.snapshots},
                                        {"parameters", found.parameters},
                                        {"examples", found.examples},
                                        {"hash", fmt::format("{:016x}", found.hash)},
                                        {"members", members}};
    fmt::print("{}\n", all.dump(2));
    return true;
  }
  fmt::print(
      "run {} of a hub: commits {} to {} done again, snapshots compared: {}; {} parameters, hash "
      "{:016x}{}\n\n{}",
      found.run.substr(0, 8), found.from + 1, found.to, found.snapshots, grouped(found.parameters),
      found.hash, found.finished ? "; finished" : "", process::table(rows));
  return true;
}

}  // namespace dgc::app
