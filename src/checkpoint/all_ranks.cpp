// A rank must never wait for one that has failed, so every piece of work ends with a report of all
// ranks: its result, or its error. A slow disk must not look like a dead rank either, so ranks that
// are not done say "not yet" in time.
#include "checkpoint/all_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "dgc/collectives.h"

namespace dgc::checkpoint {
namespace {

using nlohmann::json;

json failure_of(ErrorCode code, const std::string& subject, const std::string& problem,
                const std::string& hint) {
  return {
      {"code", static_cast<int>(code)}, {"subject", subject}, {"problem", problem}, {"hint", hint}};
}

/// What the others are told: {"result": ...} or {"code": ...}.
std::string report_of(const std::function<json()>& work) {
  json report;
  try {
    report = {{"result", work()}};
  } catch (const Error& error) {
    report = failure_of(error.code(), error.subject(), error.problem(), error.hint());
  } catch (const std::filesystem::filesystem_error& error) {
    report = failure_of(ErrorCode::io, error.path1().string(), error.code().message(), "");
  } catch (const std::exception& error) {
    report = failure_of(ErrorCode::internal, "this rank", error.what(), "");
  }
  // Paths need not be UTF-8.
  return report.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Everybody's report. An empty message says "not yet".
std::vector<std::string> gather_reports(Group& group, const std::function<json()>& work) {
  if (group.size() == 1) return {report_of(work)};
  // On another thread, so that this one can tell the others that there is more to come. If the
  // group fails meanwhile, the future waits for the disk.
  std::future<std::string> pending =
      std::async(std::launch::async, [&] { return report_of(work); });
  std::string mine;
  for (;;) {
    if (mine.empty() && pending.wait_for(group.timeout() / 4) == std::future_status::ready) {
      mine = pending.get();
    }
    const auto all = all_gather(group, std::as_bytes(std::span(mine)));
    std::vector<std::string> reports;
    for (const auto& bytes : all) {
      if (bytes.empty()) break;
      reports.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    if (reports.size() == all.size()) return reports;
  }
}

/// A stretch of a file that fits into one message.
struct Chunk {
  std::size_t file;
  std::uint64_t offset;
  std::uint64_t size;
};

/// Everything that goes from one rank to another, in order.
using Streams = std::map<std::pair<int, int>, std::vector<Chunk>>;

Streams cut_into_chunks(const Manifest& manifest, const std::vector<Transfer>& transfers,
                        int ranks) {
  // What a rank sends in one round has to pass well within the group's timeout on a slow network:
  // 32 MiB take 3 s at 100 Mbit/s.
  const std::uint64_t longest =
      std::max((std::uint64_t{32} << 20) / static_cast<std::uint64_t>(ranks), std::uint64_t{65536});
  Streams streams;
  for (const Transfer& transfer : transfers) {
    const std::uint64_t size = manifest.files[transfer.file].size;
    for (std::uint64_t offset = 0; offset < size; offset += longest) {
      streams[{transfer.from, transfer.to}].push_back(
          {transfer.file, offset, std::min(longest, size - offset)});
    }
  }
  return streams;
}

}  // namespace

RankResults try_on_all_ranks(Group& group, const std::string& operation,
                             const std::function<json()>& work) {
  const std::vector<std::string> reports = gather_reports(group, work);
  RankResults results;
  for (int rank = 0; rank < group.size(); ++rank) {
    json report = json::parse(reports[static_cast<std::size_t>(rank)]);
    if (!report.contains("code")) {
      results.by_rank.push_back(std::move(report["result"]));
      continue;
    }
    results.failure.emplace(
        static_cast<ErrorCode>(report["code"].get<int>()), operation,
        report["subject"].get<std::string>(),
        fmt::format("rank {}: {}", group.world_rank(rank), report["problem"].get<std::string>()),
        report["hint"].get<std::string>());
    break;
  }
  return results;
}

std::vector<json> on_all_ranks(Group& group, const std::string& operation,
                               const std::function<json()>& work) {
  RankResults results = try_on_all_ranks(group, operation, work);
  if (results.failure) throw Error(*results.failure);
  return std::move(results.by_rank);
}

void require_same(const std::string& operation, int rank, const std::string& what,
                  const json& theirs, const json& of_rank_0) {
  if (theirs == of_rank_0) return;
  throw Error(ErrorCode::configuration_mismatch, operation, fmt::format("rank {}", rank),
              fmt::format("has {} {} where rank 0 has {}", what, theirs.dump(), of_rank_0.dump()));
}

ReceivedFiles transfer_files(Group& group, const std::string& operation, const Manifest& manifest,
                             const std::vector<Transfer>& transfers,
                             const std::filesystem::path& directory, const std::string& hint) {
  ReceivedFiles received;
  if (transfers.empty()) return received;
  // Everything that can fail is done before the first byte is sent, or after the last.
  std::map<std::size_t, std::unique_ptr<MappedFile>> sent;
  on_all_ranks(group, operation, [&] {
    for (const Transfer& transfer : transfers) {
      const FileEntry& entry = manifest.files[transfer.file];
      if (transfer.to == group.rank()) {
        received[transfer.file] = std::make_unique<MemoryFile>(entry.size);
      }
      if (transfer.from != group.rank() || sent.contains(transfer.file)) continue;
      const std::filesystem::path path = directory / entry.name;
      auto file = std::make_unique<MappedFile>(path);
      check_bytes(file->contents(), entry, path.string(), hint);
      sent[transfer.file] = std::move(file);
    }
    return nlohmann::json();
  });

  const Streams streams = cut_into_chunks(manifest, transfers, group.size());
  std::size_t rounds = 0;
  for (const auto& [pair, chunks] : streams) rounds = std::max(rounds, chunks.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    for (const auto& [pair, chunks] : streams) {
      if (round >= chunks.size()) continue;
      const Chunk& chunk = chunks[round];
      if (pair.first == group.rank()) {
        sends.push_back(
            {pair.second, sent.at(chunk.file)->contents().subspan(chunk.offset, chunk.size)});
      } else if (pair.second == group.rank()) {
        receives.push_back(
            {pair.first, received.at(chunk.file)->bytes().subspan(chunk.offset, chunk.size)});
      }
    }
    group.exchange(sends, receives);
    // So that a rank which has everything does not wait for all the others at the end.
    barrier(group);
  }
  on_all_ranks(group, operation, [&] {
    for (const auto& [file, memory] : received) {
      check_bytes(memory->bytes(), manifest.files[file],
                  fmt::format("{}, as received", manifest.files[file].name), hint);
    }
    return nlohmann::json();
  });
  return received;
}

}  // namespace dgc::checkpoint
