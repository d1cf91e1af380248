#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/file.h"
#include "checkpoint/disk.h"
#include "checkpoint/folder.h"
#include "checkpoint/names.h"
#include "checkpoint/survey.h"
#include "checkpoint/tidy.h"
#include "checkpoint/together.h"
#include "dgc/collectives.h"
#include "dgc/version.h"

namespace dgc::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kOperation = "save checkpoint";

[[noreturn]] void reject(std::string subject, std::string problem) {
  throw Error(ErrorCode::invalid_argument, kOperation, std::move(subject), std::move(problem));
}

/// A file that is there as long as this object.
class Probe {
 public:
  explicit Probe(fs::path path) : path_(std::move(path)) { create_file(path_); }
  ~Probe() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

 private:
  fs::path path_;
};

/// One call of save(), step by step. Each step ends when all ranks have done it.
class Saving {
 public:
  Saving(Group& group, fs::path folder, const Contents& contents, int keep, const Trace& trace)
      : group_(group),
        folder_(std::move(folder)),
        contents_(contents),
        keep_(keep),
        trace_(trace),
        partial_(folder_ / step_name(contents.step, Stage::partial)),
        whole_(folder_ / step_name(contents.step)),
        replaced_(folder_ / step_name(contents.step, Stage::replaced)) {}

  fs::path run() {
    find_leaders(prepare());
    write_files();
    step([this] {
      if (leads()) write_manifest();
      return json();
    });
    step([this] {
      if (leads()) put_in_place();
      return json();
    });
    clear_up();
    return whole_;
  }

 private:
  bool leads() const { return leader_ == group_.rank(); }
  void trace(std::string_view what) const {
    if (trace_) trace_(what);
  }

  /// Runs `work` on all ranks; if one fails, takes everything back and throws.
  std::vector<json> step(const std::function<json()>& work) {
    Outcome outcome = together(group_, kOperation, work);
    if (outcome.failure) {
      if (leads()) take_back();
      throw Error(*outcome.failure);
    }
    return std::move(outcome.results);
  }

  void check_arguments() const {
    if (keep_ < 1) reject("keep", fmt::format("{} checkpoints, at least 1", keep_));
    if (contents_.state == nullptr) reject("state", "is missing");
    if (folder_.empty()) reject("folder", "has no name");
    std::set<std::string_view> names;
    for (const Blob& blob : contents_.shared) {
      const std::string problem = problem_of_shared_name(blob.name);
      if (!problem.empty()) reject(fmt::format("'{}'", blob.name), problem);
      if (!names.insert(blob.name).second) reject(fmt::format("'{}'", blob.name), "is there twice");
    }
    Manifest manifest;
    manifest.user = contents_.user;
    manifest.text();  // throws unless it is UTF-8
  }

  /// What every rank brings, and the probe by which others see it.
  std::vector<json> prepare() {
    auto all = step([this] {
      check_arguments();
      trace("folder");
      fs::create_directories(folder_);
      sync_directory(fs::absolute(folder_).parent_path());
      json shared = json::array();
      for (const Blob& blob : contents_.shared) {
        const FileEntry entry = measure(blob.name, blob.bytes);
        shared.push_back({entry.name, entry.size, entry.checksum});
      }
      // Random, so that a file that a killed run left is not taken for that of a rank of this one.
      std::random_device random;
      const std::uint64_t nonce = (std::uint64_t{random()} << 32) | random();
      const std::string name = probe_name(nonce, group_.rank());
      trace("probe");
      probe_.emplace(folder_ / name);
      return json{{"probe", name},
                  {"step", contents_.step},
                  {"keep", keep_},
                  {"state step", contents_.state->step()},
                  {"state workers", contents_.state->workers()},
                  {"user", group_.rank() == 0 ? contents_.user : ""},
                  {"shared", std::move(shared)},
                  {"sightings", to_json(look(folder_, contents_.step))}};
    });
    for (int rank = 1; rank < group_.size(); ++rank) {
      compare(all[0], all[static_cast<std::size_t>(rank)], group_.world_rank(rank));
    }
    return all;
  }

  static void compare(const json& first, const json& other, int rank) {
    const auto differ = [&](const std::string& what, const json& theirs, const json& ours) {
      if (theirs == ours) return;
      throw Error(ErrorCode::configuration_mismatch, kOperation, fmt::format("rank {}", rank),
                  fmt::format("has {} {} where rank 0 has {}", what, theirs.dump(), ours.dump()));
    };
    for (const char* what : {"step", "keep", "state step", "state workers"}) {
      differ(what, other[what], first[what]);
    }
    differ("the number of shared files", other["shared"].size(), first["shared"].size());
    for (std::size_t i = 0; i < first["shared"].size(); ++i) {
      const json& theirs = other["shared"][i];
      const json& ours = first["shared"][i];
      differ("the shared file", theirs[0], ours[0]);
      if (theirs == ours) continue;
      throw Error(ErrorCode::diverged, kOperation, fmt::format("rank {}", rank),
                  fmt::format("has another {} than rank 0", ours[0].get<std::string>()),
                  "shared files have to be the same on all ranks; go back to the last checkpoint");
    }
  }

  /// The lowest rank that sees this folder makes the directory, writes what is shared, and clears
  /// up.
  void find_leaders(const std::vector<json>& all) {
    std::vector<std::vector<Sighting>> sightings;
    for (const json& one : all) sightings.push_back(sightings_of(one["sightings"]));
    const Survey survey(std::move(sightings));
    const auto leaders = step([&] {
      for (leader_ = 0; leader_ < group_.rank(); ++leader_) {
        // By name, not from a listing: network file systems cache those.
        if (fs::exists(folder_ / all[static_cast<std::size_t>(leader_)]["probe"])) break;
      }
      if (leads()) {
        trace("settle");
        settle(folder_, survey, group_.rank(), contents_.step);
        trace("directory");
        fs::create_directory(partial_);
        made_ = true;
      }
      return json(leader_);
    });
    probe_.reset();
    for (std::size_t rank = 0; rank < leaders.size(); ++rank) {
      const auto leader = leaders[rank].get<std::size_t>();
      if (leaders[leader] != leaders[rank]) {
        if (leads()) take_back();
        throw Error(ErrorCode::io, kOperation, folder_.string(),
                    fmt::format("ranks {} and {} do not see the same files there", rank, leader),
                    "the file system does not show new files to other machines at once");
      }
      if (leader == static_cast<std::size_t>(leader_)) {
        manifest_.ranks_here.push_back(static_cast<int>(rank));
      }
    }
    manifest_.version = DGC_VERSION;
    manifest_.step = contents_.step;
    manifest_.state_step = contents_.state->step();
    manifest_.state_workers = contents_.state->workers();
    manifest_.workers = group_.size();
    manifest_.user = all[0]["user"];
    for (const json& file : all[0]["shared"])
      manifest_.files.push_back({file[0], file[1], file[2]});
  }

  void write_files() {
    const auto all = step([this] {
      const std::string name = rank_file_name(group_.rank());
      trace("rank file");
      contents_.state->save(partial_ / name);
      if (leads()) {
        for (const Blob& blob : contents_.shared) {
          trace("shared file");
          write_file(partial_ / blob.name, blob.bytes);
        }
      }
      const MappedFile written(partial_ / name);
      const FileEntry entry = measure(name, written.contents());
      return json{entry.name, entry.size, entry.checksum};
    });
    for (const json& file : all) manifest_.files.push_back({file[0], file[1], file[2]});
  }

  /// Last of all files: a directory that has it is complete.
  void write_manifest() {
    trace("manifest");
    const std::string text = manifest_.text();
    write_file(partial_ / kManifestName, std::as_bytes(std::span(text)));
  }

  void put_in_place() {
    const auto status = fs::symlink_status(whole_);
    if (fs::exists(status)) {
      if (!fs::is_directory(status)) {
        throw Error(ErrorCode::io, kOperation, whole_.string(), "is in the way: not a directory");
      }
      if (!fs::exists(whole_ / kManifestName)) {
        throw Error(ErrorCode::io, kOperation, whole_.string(), "is in the way: it has no manifest",
                    "move it away");
      }
      discard(replaced_);
      trace("aside");
      rename_path(whole_, replaced_);
      aside_ = true;
    }
    trace("rename");
    rename_path(partial_, whole_);
    placed_ = true;
  }

  /// Leaves the folder as it was. What cannot be undone is left for the next save.
  void take_back() noexcept {
    try {
      if (placed_) discard(whole_);
      if (aside_) rename_path(replaced_, whole_);
      if (made_) discard(partial_);
    } catch (const std::exception&) {
    }
  }

  /// Begins when the new checkpoint is on all disks. No failure here is one of the checkpoint.
  void clear_up() {
    const auto looked = together(group_, kOperation, [this] {
      trace("look");
      return to_json(look(folder_));
    });
    if (!looked.failure) {
      std::vector<std::vector<Sighting>> sightings;
      for (const json& one : looked.results) sightings.push_back(sightings_of(one));
      const Survey survey(std::move(sightings));
      // All wait for the end, because probes of the next save must not be taken for old ones.
      together(group_, kOperation, [&] {
        trace("prune");
        if (leads()) prune(folder_, survey, group_.rank(), contents_.step, keep_);
        trace("end");
        return json();
      });
    }
  }

  Group& group_;
  fs::path folder_;
  const Contents& contents_;
  int keep_;
  const Trace& trace_;
  fs::path partial_;
  fs::path whole_;
  fs::path replaced_;
  std::optional<Probe> probe_;
  int leader_ = -1;
  bool made_ = false;
  bool aside_ = false;
  bool placed_ = false;
  Manifest manifest_;
};

}  // namespace

fs::path save(Group& group, const fs::path& folder, const Contents& contents, int keep,
              const Trace& trace) {
  return Saving(group, folder, contents, keep, trace).run();
}

}  // namespace dgc::checkpoint
