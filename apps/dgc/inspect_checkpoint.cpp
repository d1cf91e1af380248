// dgc inspect DIR: shows a checkpoint, or lists a folder of checkpoints. Every file is read and
// compared with its checksum.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "checkpoint/inventory.h"
#include "dgc/error.h"
#include "inspect.h"
#include "process/terminal.h"

namespace dgc::app {
namespace {

using checkpoint::Description;
using nlohmann::json;

std::string text_of(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace);
}

std::uint64_t bytes_here(const Description& description) {
  std::uint64_t bytes = 0;
  for (const auto& file : description.files) bytes += file.elsewhere ? 0 : file.entry.size;
  return bytes;
}

std::string count_of_workers(int workers) {
  return fmt::format("{} worker{}", workers, workers == 1 ? "" : "s");
}

/// Ranks whose files are on this disk.
std::string ranks_text(const checkpoint::Manifest& manifest) {
  if (manifest.ranks_here.size() == static_cast<std::size_t>(manifest.workers)) return "all";
  return fmt::format("{}", fmt::join(manifest.ranks_here, ","));
}

json json_of(const Description& description) {
  const checkpoint::Manifest& manifest = description.manifest;
  json one = {{"kind", "checkpoint"},
              {"path", description.path.string()},
              {"whole", !description.damage.has_value()}};
  if (description.damage) {
    one["error"] = error_name(description.damage->code());
    one["problem"] =
        fmt::format("{}: {}", description.damage->subject(), description.damage->problem());
  }
  if (manifest.workers == 0) return one;  // it could not be read
  json files = json::array();
  for (const Description::File& file : description.files) {
    files.push_back({{"name", file.entry.name},
                     {"bytes", file.entry.size},
                     {"xxh64", fmt::format("{:016x}", file.entry.checksum)},
                     {"here", !file.elsewhere},
                     {"whole", !file.damage.has_value()}});
  }
  one["step"] = manifest.step;
  one["workers"] = manifest.workers;
  one["state_workers"] = manifest.state_workers;
  one["dgc"] = manifest.version;
  one["user"] = manifest.user;
  one["ranks_here"] = manifest.ranks_here;
  one["bytes"] = bytes_here(description);
  one["files"] = std::move(files);
  return one;
}

void show_one(const std::filesystem::path& directory, bool as_json) {
  const Description description = checkpoint::describe(directory);
  if (description.damage) {
    const Error& error = *description.damage;
    throw Error(
        error.code(), "inspect", error.subject(),
        fmt::format("{} [{}]", error.problem(), error_name(error.code())),
        fmt::format("no run can resume from it; use an earlier one: dgc inspect {} lists them",
                    std::filesystem::absolute(directory).parent_path().string()));
  }
  if (as_json) {
    fmt::print("{}\n", text_of(json_of(description)));
    return;
  }
  const checkpoint::Manifest& manifest = description.manifest;
  std::vector<std::vector<std::string>> rows = {{"file", "bytes", "xxh64", "check"}};
  for (const Description::File& file : description.files) {
    rows.push_back({file.entry.name, grouped(file.entry.size),
                    fmt::format("{:016x}", file.entry.checksum),
                    file.elsewhere ? "on another disk" : "ok"});
  }
  fmt::print("checkpoint of step {}, written by {} with dgc {}\n", manifest.step,
             count_of_workers(manifest.workers), manifest.version);
  fmt::print("on this disk: {} bytes, with the states of ranks: {}\n",
             grouped(bytes_here(description)), ranks_text(manifest));
  if (!manifest.user.empty()) fmt::print("user: {}\n", manifest.user);
  fmt::print("\n{}", process::table(rows));
}

void show_all(const std::vector<std::filesystem::path>& directories, bool as_json) {
  json all = json::array();
  std::vector<std::vector<std::string>> rows = {
      {"checkpoint", "step", "workers", "ranks here", "bytes", "check"}};
  for (const auto& directory : directories) {
    const Description description = checkpoint::describe(directory);
    const checkpoint::Manifest& manifest = description.manifest;
    const auto name = checkpoint::parse_step_name(directory.filename().string());
    const bool leftover = name && name->stage != checkpoint::Stage::whole;
    all.push_back(json_of(description));
    all.back()["leftover"] = leftover;
    const std::string file =
        description.damage
            ? std::filesystem::path(description.damage->subject()).filename().string()
            : "";
    const std::string check = description.damage
                                  ? fmt::format("{}: {}", file, description.damage->problem())
                              : leftover ? "ok; left by an interrupted save"
                                         : "ok";
    const bool readable = manifest.workers > 0;
    rows.push_back({directory.filename().string(), readable ? std::to_string(manifest.step) : "",
                    readable ? std::to_string(manifest.workers) : "",
                    readable ? ranks_text(manifest) : "",
                    readable ? grouped(bytes_here(description)) : "", check});
  }
  fmt::print("{}", as_json ? text_of(all) + "\n" : process::table(rows));
}

}  // namespace

void show_checkpoints(const std::filesystem::path& directory, bool as_json) {
  // A trailing slash would hide the directory's name, which says its step.
  const auto path = directory.has_filename() ? directory : directory.parent_path();
  if (std::filesystem::exists(path / checkpoint::kManifestName)) {
    show_one(path, as_json);
    return;
  }
  const auto directories = checkpoint::list(path);
  if (directories.empty()) {
    throw Error(ErrorCode::io, "inspect", path.string(), "holds no checkpoint",
                "give a directory step-..., or the folder that contains them; a run of dgc train "
                "has them in RUN/MODE/checkpoints");
  }
  show_all(directories, as_json);
}

}  // namespace dgc::app
