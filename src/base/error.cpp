#include "dgc/error.h"

#include <array>
#include <utility>

namespace dgc {
namespace {

using Named = std::pair<ErrorCode, std::string_view>;

/// Every code of dgc/error.h, in its order.
constexpr auto kNames = std::to_array<Named>({
    {ErrorCode::ok, "ok"},
    {ErrorCode::invalid_argument, "invalid_argument"},
    {ErrorCode::shape_mismatch, "shape_mismatch"},
    {ErrorCode::buffer_too_small, "buffer_too_small"},
    {ErrorCode::nonfinite_gradient, "nonfinite_gradient"},
    {ErrorCode::nonfinite_residual, "nonfinite_residual"},
    {ErrorCode::wrong_order, "wrong_order"},
    {ErrorCode::unsupported_target, "unsupported_target"},
    {ErrorCode::io, "io"},
    {ErrorCode::internal, "internal"},
    {ErrorCode::truncated, "truncated"},
    {ErrorCode::bad_magic, "bad_magic"},
    {ErrorCode::bad_version, "bad_version"},
    {ErrorCode::reserved_bits, "reserved_bits"},
    {ErrorCode::trailing_bytes, "trailing_bytes"},
    {ErrorCode::checksum_mismatch, "checksum_mismatch"},
    {ErrorCode::bad_length, "bad_length"},
    {ErrorCode::bad_varint, "bad_varint"},
    {ErrorCode::frame_order, "frame_order"},
    {ErrorCode::unknown_tensor, "unknown_tensor"},
    {ErrorCode::bad_index_coding, "bad_index_coding"},
    {ErrorCode::bad_value_type, "bad_value_type"},
    {ErrorCode::bad_count, "bad_count"},
    {ErrorCode::index_out_of_range, "index_out_of_range"},
    {ErrorCode::index_not_increasing, "index_not_increasing"},
    {ErrorCode::bad_scale, "bad_scale"},
    {ErrorCode::nonfinite_value, "nonfinite_value"},
    {ErrorCode::limit_exceeded, "limit_exceeded"},
    {ErrorCode::bad_state, "bad_state"},
    {ErrorCode::state_mismatch, "state_mismatch"},
    {ErrorCode::peer_lost, "peer_lost"},
    {ErrorCode::timeout, "timeout"},
    {ErrorCode::peer_failed, "peer_failed"},
    {ErrorCode::engine_unavailable, "engine_unavailable"},
    {ErrorCode::configuration_mismatch, "configuration_mismatch"},
    {ErrorCode::diverged, "diverged"},
});

std::string compose(const std::string& operation, const std::string& subject,
                    const std::string& problem, const std::string& hint) {
  std::string text = operation;
  if (!subject.empty()) text += ": " + subject;
  text += ": " + problem;
  if (!hint.empty()) text += " (" + hint + ")";
  return text;
}

}  // namespace

Error::Error(ErrorCode code, std::string operation, std::string subject, std::string problem,
             std::string hint)
    : std::runtime_error(compose(operation, subject, problem, hint)),
      code_(code),
      operation_(std::move(operation)),
      subject_(std::move(subject)),
      problem_(std::move(problem)),
      hint_(std::move(hint)) {}

Error as_error(const std::exception& exception) {
  if (const auto* const error = dynamic_cast<const Error*>(&exception)) return *error;
  return Error(ErrorCode::internal, "exchange", "this rank", exception.what());
}

std::span<const ErrorCode> error_codes() noexcept {
  static constexpr auto kCodes = [] {
    std::array<ErrorCode, kNames.size()> codes{};
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = kNames[i].first;
    return codes;
  }();
  return kCodes;
}

std::string_view error_name(ErrorCode code) noexcept {
  for (const auto& [known, name] : kNames) {
    if (known == code) return name;
  }
  return "unknown";
}

std::optional<ErrorCode> error_code_named(std::string_view name) noexcept {
  for (const auto& [code, known] : kNames) {
    if (known == name) return code;
  }
  return std::nullopt;
}

}  // namespace dgc
