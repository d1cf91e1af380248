#include "checkpoint/together.h"

#include <fmt/format.h>

#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

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

}  // namespace

Outcome together(Group& group, const std::string& operation, const std::function<json()>& work) {
  const std::vector<std::string> reports = gather_reports(group, work);
  Outcome outcome;
  for (int rank = 0; rank < group.size(); ++rank) {
    json report = json::parse(reports[static_cast<std::size_t>(rank)]);
    if (!report.contains("code")) {
      outcome.results.push_back(std::move(report["result"]));
      continue;
    }
    outcome.failure.emplace(
        static_cast<ErrorCode>(report["code"].get<int>()), operation,
        report["subject"].get<std::string>(),
        fmt::format("rank {}: {}", group.world_rank(rank), report["problem"].get<std::string>()),
        report["hint"].get<std::string>());
    break;
  }
  return outcome;
}

std::vector<json> agree(Group& group, const std::string& operation,
                        const std::function<json()>& work) {
  Outcome outcome = together(group, operation, work);
  if (outcome.failure) throw Error(*outcome.failure);
  return std::move(outcome.results);
}

}  // namespace dgc::checkpoint
