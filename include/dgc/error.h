// One exception type for the whole library.
#pragma once

#include <exception>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dgc {

/// Stable identifiers of everything that can go wrong. Numbers never change meaning; new ones are
/// added at the end of their group.
enum class ErrorCode : int {
  // General.
  ok = 0,
  invalid_argument = 1,    ///< an option or argument outside its domain
  shape_mismatch = 2,      ///< a tensor has another size or shape than the one expected
  buffer_too_small = 3,    ///< caller's buffer is below the documented bound
  nonfinite_gradient = 4,  ///< NaN or Inf in a gradient
  nonfinite_residual = 5,  ///< accumulation overflowed the range of float
  wrong_order = 6,         ///< calls in an order the contract forbids
  unsupported_target = 7,  ///< DGC_TARGET names an instruction set that is unknown or absent
  io = 8,                  ///< a file could not be read or written
  internal = 9,            ///< something the library did not foresee, such as no memory left

  // Messages (docs/format.md, "Errors").
  truncated = 100,             ///< the buffer ends before the message does
  bad_magic = 101,             ///< not a dgc message (or state file) at all
  bad_version = 102,           ///< a version this library does not read
  reserved_bits = 103,         ///< a reserved or padding bit is set
  trailing_bytes = 104,        ///< bytes follow the end of the message, frame or section
  checksum_mismatch = 105,     ///< the xxHash trailer does not match
  bad_length = 106,            ///< a length field contradicts the contents
  bad_varint = 107,            ///< a variable-length integer is overlong or exceeds 32 bits
  frame_order = 108,           ///< tensor ids of the frames are not strictly increasing
  unknown_tensor = 109,        ///< a frame for a tensor that the receiver does not have
  bad_index_coding = 110,      ///< index coding outside the defined set
  bad_value_type = 111,        ///< value type outside the defined set
  bad_count = 112,             ///< the number of entries contradicts the coding or the tensor size
  index_out_of_range = 113,    ///< an index at or past the end of its tensor
  index_not_increasing = 114,  ///< indices given to the encoder are not strictly increasing
  bad_scale = 115,             ///< a block scale is NaN, infinite, negative or out of range
  nonfinite_value = 116,       ///< a value decodes to NaN or Inf
  limit_exceeded = 117,        ///< more elements or entries than the caller allows

  // State files.
  bad_state = 200,       ///< a field of a state file is malformed
  state_mismatch = 201,  ///< a state file of another model, rank, step or number of workers

  // Groups and exchange.
  peer_lost = 300,               ///< the connection to a peer broke
  timeout = 301,                 ///< a peer did not answer within the deadline
  peer_failed = 302,             ///< another rank gave up, and said why
  engine_unavailable = 303,      ///< an engine that is not compiled in or cannot start
  configuration_mismatch = 304,  ///< ranks differ in model, options, version or step
  diverged = 305,                ///< the parameters of two ranks differ
};

/// Every code, in the order of their numbers.
std::span<const ErrorCode> error_codes() noexcept;
/// Stable lower-case name of a code, as used in `--json` output and tests.
std::string_view error_name(ErrorCode code) noexcept;
/// Inverse of error_name.
std::optional<ErrorCode> error_code_named(std::string_view name) noexcept;

/// Thrown by every function of the library that can fail. `what()` reads
/// "operation: subject: problem (hint)"; the parts are available separately.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string operation, std::string subject, std::string problem,
        std::string hint = {});

  ErrorCode code() const noexcept { return code_; }
  /// What was being done, e.g. "compress".
  const std::string& operation() const noexcept { return operation_; }
  /// The tensor, file, peer or option concerned; may be empty.
  const std::string& subject() const noexcept { return subject_; }
  const std::string& problem() const noexcept { return problem_; }
  /// What to do about it; may be empty.
  const std::string& hint() const noexcept { return hint_; }

 private:
  ErrorCode code_;
  std::string operation_;
  std::string subject_;
  std::string problem_;
  std::string hint_;
};

/// An Error as it is, anything else (no memory left, say) as one with code internal: for telling
/// others.
Error as_error(const std::exception& exception);

}  // namespace dgc
