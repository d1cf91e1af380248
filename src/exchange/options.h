// The options of an exchange: their domain, and the list of them.
#pragma once

#include "compress/option_table.h"
#include "dgc/exchange.h"

namespace dgc {

/// Of ExchangeOptions, in the order of its members.
std::span<const Option<ExchangeOptions>> exchange_options();

namespace exchange {

/// Throws Error(invalid_argument).
void check_options(const ExchangeOptions& options);

}  // namespace exchange
}  // namespace dgc
