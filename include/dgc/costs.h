// What moving and coding gradients cost: the constants by which `auto` chooses and `dgc plan`
// predicts (docs/exchange.md, "Which one").
#pragma once

#include <string>

#include "dgc/link.h"

namespace dgc {

/// Seconds, of one worker. The defaults of the work are those of one core of a current server.
struct Costs {
  /// Of a round: each worker sends a message to each other.
  Link link = {.bytes_per_second = 1e9 / 8.0, .delay = std::chrono::duration<double>(50e-6)};
  double select = 0.9e-9;  ///< an element: correct, accumulate, look for the largest
  double encode = 28e-9;   ///< an entry of the own message: select exactly, encode
  double entry = 8e-9;     ///< an entry of anybody's message: check, decode, add
  double place = 6e-9;     ///< an entry in a dense slice: select exactly, put in its place
  double slice = 1.7e-9;   ///< an element of a dense slice: lay out, add up, apply
  /// An element of a gradient that is averaged or sent whole: adding up, applying. As in a good
  /// all-reduce; `dgc train --mode dense` costs more (docs/plan.md).
  double dense = 0.5e-9;
  double dense16 = 1.0e-9;  ///< the same with conversion to 16 bits and back
  double byte = 0.1e-9;     ///< a byte sent or received: system calls, copies, TCP
  double message = 10e-6;   ///< a message sent and received: system calls, headers
  /// A round, beside the delay: sleeping until the others' messages are there, and being put on a
  /// core again.
  double round = 20e-6;
  bool measured = false;  ///< by this group; then byte, message and round are part of the link

  bool operator==(const Costs&) const = default;
};

/// "link 100 Mbps, 25 ms (measured); 31 ns an entry to encode, …", without a line break.
std::string costs_text(const Costs& costs);

}  // namespace dgc
