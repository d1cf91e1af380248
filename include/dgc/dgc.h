// What most programs need, without libtorch: make a group, exchange gradients, or compress and send
// them by yourself. For libtorch there is dgc/sgd.h. The other headers are for those who build on
// parts of it: rendezvous (dgc/address_store.h), checkpoints (dgc/checkpoint.h).
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
