// dgc inspect: what is in a message, a state file, a checkpoint or a hub's run.
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "command.h"
#include "dgc/error.h"
#include "dgc/state.h"
#include "dgc/wire.h"
#include "inspect.h"
#include "process/terminal.h"

namespace dgc::app {
namespace {

using nlohmann::json;

/// Names in a file need not be UTF-8; what is not is replaced, so that any file can be shown.
std::string text_of(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace);
}

json notice_json(const Notice& notice) {
  json all = {{"bucket", notice.bucket},
              {"tensors", notice.present.size()},
              {"present", std::count(notice.present.begin(), notice.present.end(), true)},
              {"stop", notice.stop},
              {"nonfinite", notice.nonfinite}};
  if (notice.parameters) all["parameters"] = fmt::format("{:016x}", *notice.parameters);
  if (notice.failure) {
    all["failure"] = {{"code", error_name(notice.failure->code)}, {"cause", notice.failure->text}};
  }
  return all;
}

std::string notice_text(const Notice& notice) {
  std::string text = fmt::format("bucket {}: gradients of {} of {} tensors", notice.bucket,
                                 std::count(notice.present.begin(), notice.present.end(), true),
                                 notice.present.size());
  if (notice.stop) text += "; wants to stop";
  if (notice.nonfinite) text += "; a gradient is not finite";
  if (notice.parameters) text += fmt::format("; parameters {:016x}", *notice.parameters);
  if (notice.failure) text += fmt::format("; gave up: {}", notice.failure->text);
  return text + "\n";
}

void show_message(std::span<const std::byte> contents, bool as_json) {
  const CheckedMessage info(contents);
  const MessageHeader& header = info.header();
  json frames = json::array();
  std::vector<std::vector<std::string>> rows = {
      {"tensor", "elements", "entries", "sent %", "indices", "values", "bytes", "bits/entry"}};
  std::uint64_t elements = 0;
  std::uint64_t entries = 0;
  for (const FrameInfo& frame : info.frames()) {
    elements += frame.elements;
    entries += frame.entries;
    frames.push_back({{"tensor", frame.tensor},
                      {"elements", frame.elements},
                      {"entries", frame.entries},
                      {"indices", name_of(frame.coding)},
                      {"values", name_of(frame.value_type)},
                      {"bytes", frame.bytes},
                      {"header_bytes", frame.header_bytes()},
                      {"value_bytes", frame.value_bytes},
                      {"index_bytes", frame.index_bytes}});
    const auto count = static_cast<double>(frame.entries);
    rows.push_back({std::to_string(frame.tensor), grouped(frame.elements), grouped(frame.entries),
                    fmt::format("{:.4f}", 100.0 * count / static_cast<double>(frame.elements)),
                    std::string(name_of(frame.coding)), std::string(name_of(frame.value_type)),
                    grouped(frame.bytes),
                    fmt::format("{:.2f}", 8.0 * static_cast<double>(frame.bytes) / count)});
  }
  const double ratio = 4.0 * static_cast<double>(elements) / static_cast<double>(contents.size());
  if (as_json) {
    json all = {{"kind", "message"},       {"step", header.step},      {"sender", header.sender},
                {"schema", header.schema}, {"bytes", contents.size()}, {"elements", elements},
                {"entries", entries},      {"message_ratio", ratio},   {"frames", frames}};
    if (header.notice) all["notice"] = notice_json(*header.notice);
    fmt::print("{}\n", text_of(all));
    return;
  }
  fmt::print(
      "message of step {} from rank {}: {} frames, {} entries of {} elements, {} bytes, "
      "{:.1f}x smaller than fp32\n{}\n{}",
      header.step, header.sender, info.frames().size(), grouped(entries), grouped(elements),
      grouped(contents.size()), ratio, header.notice ? notice_text(*header.notice) : "",
      process::table(rows));
}

void show_state(std::span<const std::byte> contents, bool as_json) {
  const StateInfo info = inspect_state(contents);
  json tensors = json::array();
  std::vector<std::vector<std::string>> rows = {
      {"tensor", "shape", "kind", "elements", "|u|", "|v|", "v non-zero %"}};
  for (const StateInfo::Tensor& tensor : info.tensors) {
    const std::uint64_t elements = tensor.spec.elements();
    tensors.push_back({{"name", tensor.spec.name},
                       {"shape", tensor.spec.shape},
                       {"dense", tensor.spec.dense},
                       {"elements", elements},
                       {"velocity_norm", tensor.velocity_norm},
                       {"residual_norm", tensor.residual_norm},
                       {"residual_nonzero", tensor.residual_nonzero}});
    const double share = elements == 0 ? 0.0
                                       : 100.0 * static_cast<double>(tensor.residual_nonzero) /
                                             static_cast<double>(elements);
    rows.push_back({tensor.spec.name, tensor.spec.shape_text(),
                    tensor.spec.dense ? "dense" : "sparse", grouped(elements),
                    fmt::format("{:.4g}", tensor.velocity_norm),
                    fmt::format("{:.4g}", tensor.residual_norm), fmt::format("{:.2f}", share)});
  }
  if (as_json) {
    const json all = {{"kind", "state"},
                      {"rank", info.rank},
                      {"workers", info.workers},
                      {"step", info.step},
                      {"has_velocity", info.has_velocity},
                      {"bytes", info.bytes},
                      {"tensors", tensors}};
    fmt::print("{}\n", text_of(all));
    return;
  }
  fmt::print("state of rank {} of {} after {} steps, {}: {} tensors, {} bytes\n\n{}", info.rank,
             info.workers, info.step, info.has_velocity ? "with velocity" : "without velocity",
             info.tensors.size(), grouped(info.bytes), process::table(rows));
}

void run(const std::string& path, bool as_json) {
  if (std::filesystem::is_directory(path)) {
    if (!show_hub(path, as_json)) show_checkpoints(path, as_json);
    return;
  }
  const MappedFile file(path);
  const auto contents = file.contents();
  const bool is_state = contents.size() >= 4 && std::memcmp(contents.data(), "DGCS", 4) == 0;
  try {
    is_state ? show_state(contents, as_json) : show_message(contents, as_json);
  } catch (const Error& error) {
    throw Error(error.code(), "inspect", path,
                fmt::format("{} [{}]", error.problem(), error_name(error.code())),
                "dgc reads messages (DGCM) and state files (DGCS) of version 1");
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto* command = app.add_subcommand(
      "inspect", "Show what is in a message, a state file, a checkpoint or a hub's run");
  command->footer(
      "Every file is checked completely, checksums included. For a folder of checkpoints, all of\n"
      "them are listed, the newest first, with what is wrong with each. For a single file or\n"
      "checkpoint, damage is an error (exit code 1). The commits of a hub's run are done again.\n"
      "\nExamples:\n"
      "  dgc inspect message.dgc\n  dgc inspect state.dgc --json\n"
      "  dgc inspect runs/1/dgc/checkpoints\n"
      "  dgc inspect runs/1/dgc/checkpoints/step-000000001200\n"
      "  dgc inspect runs/hub");
  auto path = std::make_shared<std::string>();
  auto as_json = std::make_shared<bool>(false);
  command
      ->add_option(
          "FILE", *path,
          "A message, a state file, a checkpoint, a folder of checkpoints, or of a hub's run")
      ->required();
  command->add_flag("--json", *as_json, "Print JSON");
  command->callback([path, as_json] { run(*path, *as_json); });
}

}  // namespace dgc::app
