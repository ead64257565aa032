// SPDX-License-Identifier: MIT
// Compiled behind every header, in the debug mode of libstdc++ and with the compiler's extensions,
// which other tests do without. In that mode containers are no literal types.
