#include "dgc/error.h"

#include <utility>

namespace dgc {
namespace {

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

std::string_view error_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::ok:
      return "ok";
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::shape_mismatch:
      return "shape_mismatch";
    case ErrorCode::buffer_too_small:
      return "buffer_too_small";
    case ErrorCode::nonfinite_gradient:
      return "nonfinite_gradient";
    case ErrorCode::nonfinite_residual:
      return "nonfinite_residual";
    case ErrorCode::wrong_order:
      return "wrong_order";
    case ErrorCode::unsupported_target:
      return "unsupported_target";
    case ErrorCode::internal:
      return "internal";
    case ErrorCode::io:
      return "io";
    case ErrorCode::truncated:
      return "truncated";
    case ErrorCode::bad_magic:
      return "bad_magic";
    case ErrorCode::bad_version:
      return "bad_version";
    case ErrorCode::reserved_bits:
      return "reserved_bits";
    case ErrorCode::trailing_bytes:
      return "trailing_bytes";
    case ErrorCode::checksum_mismatch:
      return "checksum_mismatch";
    case ErrorCode::bad_length:
      return "bad_length";
    case ErrorCode::bad_varint:
      return "bad_varint";
    case ErrorCode::frame_order:
      return "frame_order";
    case ErrorCode::unknown_tensor:
      return "unknown_tensor";
    case ErrorCode::bad_index_coding:
      return "bad_index_coding";
    case ErrorCode::bad_value_type:
      return "bad_value_type";
    case ErrorCode::bad_count:
      return "bad_count";
    case ErrorCode::index_out_of_range:
      return "index_out_of_range";
    case ErrorCode::index_not_increasing:
      return "index_not_increasing";
    case ErrorCode::bad_scale:
      return "bad_scale";
    case ErrorCode::nonfinite_value:
      return "nonfinite_value";
    case ErrorCode::limit_exceeded:
      return "limit_exceeded";
    case ErrorCode::bad_state:
      return "bad_state";
    case ErrorCode::state_mismatch:
      return "state_mismatch";
    case ErrorCode::peer_lost:
      return "peer_lost";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::peer_failed:
      return "peer_failed";
    case ErrorCode::engine_unavailable:
      return "engine_unavailable";
    case ErrorCode::configuration_mismatch:
      return "configuration_mismatch";
    case ErrorCode::diverged:
      return "diverged";
  }
  return "unknown";
}

}  // namespace dgc
