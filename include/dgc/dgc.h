// Everything but libtorch: dgc::core and dgc::engines.
#pragma once

#include "dgc/collectives.h"
#include "dgc/compressor.h"
#include "dgc/costs.h"
#include "dgc/engines.h"
#include "dgc/error.h"
#include "dgc/exchange.h"
#include "dgc/group.h"
#include "dgc/link.h"
#include "dgc/schedule.h"
#include "dgc/state.h"
#include "dgc/target.h"
#include "dgc/version.h"
#include "dgc/wire.h"
