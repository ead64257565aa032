// SPDX-License-Identifier: MIT
// examples/embed/c/dispatch_combine.c in Rust: four threads are the ranks, and experts negate.
// rustc -L BUILD/examples/embed/c -l peerbus dispatch_combine.rs
use std::ffi::{c_void, CStr};
use std::mem::{size_of, zeroed};
use std::os::raw::c_char;

const TOKENS: usize = 16;
const HIDDEN: usize = 64;
const TOP_K: usize = 2;

// The structures of peerbus.h. Members that this program leaves at 0 are counted, not named.
#[repr(C)]
struct Config { struct_bytes: u32, codec: i32, layout: i32, at_home: u32, experts: u64, hidden: u64, top_k: u64,
                max_tokens: u64, rest: [u64; 11] }
#[repr(C)]
struct Dispatch { struct_bytes: u32, id_bits: u32, count: u64, tokens: *const u16, experts: *const i32,
                  weights: *const f32, rest: [u64; 8] }
#[repr(C)]
struct Combine { struct_bytes: u32, attached: u32, count: u64, out: *mut u16, rest: [u64; 7] }
#[repr(C)]
struct Received { struct_bytes: u32, by_rank: u32, ticket: u64, rows: u64, end: u64, places: [u64; 7],
                  row_data: *const u16, sizes: [u64; 3], outputs: *mut u16, rest: [u64; 9] }

type RankFunction = extern "C" fn(*mut c_void, *mut c_void) -> i32;
extern "C" {
    fn peerbus_run_threads(ranks: u64, body: RankFunction, context: *mut c_void, options: *const c_void,
                           status: *mut i32) -> i32;
    fn peerbus_last_error() -> *const c_char;
    fn peerbus_comm_rank(comm: *const c_void) -> u64;
    fn peerbus_exchange_create(comm: *mut c_void, config: *const Config, timeout_ns: i64, exchange: *mut *mut c_void) -> i32;
    fn peerbus_exchange_destroy(exchange: *mut *mut c_void);
    fn peerbus_dispatch(exchange: *mut c_void, args: *const Dispatch, received: *mut Received) -> i32;
    fn peerbus_combine(exchange: *mut c_void, ticket: u64, args: *const Combine) -> i32;
}

fn check(code: i32) {
    if code != 0 { panic!("{}", unsafe { CStr::from_ptr(peerbus_last_error()) }.to_string_lossy()); }
}

fn rank_program(comm: *mut c_void) -> bool {
    let rank = unsafe { peerbus_comm_rank(comm) } as usize;
    let tokens: Vec<u16> = (0..TOKENS * HIDDEN).map(|i| 0x3f80 + ((i + rank) % 64) as u16).collect();
    let experts: Vec<i32> = (0..TOKENS * TOP_K).map(|i| ((i / TOP_K + 3 * (i % TOP_K) + rank) % 8) as i32).collect();
    let (weights, mut sums) = ([0.5f32; TOKENS * TOP_K], [0u16; TOKENS * HIDDEN]);
    unsafe { // Zeros are the defaults of all other members.
        let config = Config { struct_bytes: size_of::<Config>() as u32, experts: 8, hidden: HIDDEN as u64,
                              top_k: TOP_K as u64, max_tokens: TOKENS as u64, ..zeroed() };
        let mut exchange = std::ptr::null_mut();
        check(peerbus_exchange_create(comm, &config, 0, &mut exchange));
        let input = Dispatch { struct_bytes: size_of::<Dispatch>() as u32, count: TOKENS as u64, tokens: tokens.as_ptr(),
                               experts: experts.as_ptr(), weights: weights.as_ptr(), ..zeroed() };
        let mut received = Received { struct_bytes: size_of::<Received>() as u32, ..zeroed() };
        check(peerbus_dispatch(exchange, &input, &mut received));
        for i in 0..received.end as usize * HIDDEN { // Outputs lie where combine reads them.
            *received.outputs.add(i) = *received.row_data.add(i) ^ 0x8000;
        }
        let output = Combine { struct_bytes: size_of::<Combine>() as u32, count: TOKENS as u64, out: sums.as_mut_ptr(), ..zeroed() };
        check(peerbus_combine(exchange, received.ticket, &output));
        peerbus_exchange_destroy(&mut exchange);
        println!("rank {}: {} rows", rank, received.rows);
    }
    tokens.iter().zip(sums.iter()).all(|(sent, sum)| sum ^ 0x8000 == *sent)
}

extern "C" fn body(comm: *mut c_void, _context: *mut c_void) -> i32 {
    // A panic must not cross C.
    match std::panic::catch_unwind(|| rank_program(comm)) { Ok(true) => 0, _ => 1 }
}

fn main() {
    let mut status = 1;
    check(unsafe { peerbus_run_threads(4, body, std::ptr::null_mut(), std::ptr::null(), &mut status) });
    std::process::exit(status);
}
