"""Counters of links: which names tell of errors and congestion, and their growth by host and device."""

from hpcdl.trace.link_counters import growth, kind_of, recorded, total

NAMES = {
    "congestion": """
        port_xmit_wait np_cnp_sent rp_cnp_handled rp_cnp_ignored np_ecn_marked_roce_packets roce_slow_restart_cnps
        rx_pause_ctrl_phy rx_prio3_pause_duration tx_pause_storm_warning_events rx_prio0_marked rx_ecn_mark
        rx_cnp_pkts rx_ecn_marked_pkts rx_pause_frames tx_pfc_frames rx_pfc_ena_frames_pri3 pfc_pri3_tx_transitions
        cnpSent RxECNMrkd link_xoff_rx.nic tx_priority_3_xon.nic rx_cnp_pkt mac_tx_mac_pause_num
        mac_rx_pfc_pri0_pkt_num mac_tx_pfc_pri0_xoff_time hni_rx_paused_0 hni_tx_paused_7 hni_pfc_fifo_oflw_cntr
    """,
    "errors": """
        symbol_error link_downed port_xmit_discards VL15_dropped local_link_integrity_errors out_of_sequence
        out_of_buffer roce_adp_retrans rnr_nak_retry_err rx_discards_phy rx_crc_errors_phy to_retransmits
        oos_drop_count rnr_naks_rcvd RetransSegs ip4InDiscards rx_dropped rx_dropped.nic mac_rx_fcs_err_pkt_num
        hni_pcs_uncorrected_cw hni_llr_tx_replay_event pct_sct_timeouts pct_trs_rsp_nack_drops
    """,
    "traffic": "port_xmit_data port_rcv_packets rx_bytes tx_packets",
    None: """
        lifespan rx_read_requests active_qps RxUDP multicast_rcv_packets rx_corrected_bits_phy rx_interrupts
        rx0_ecn_mark tx_queue_0_dropped rx-3.dropped txq0_dropped ch2_poll lpe_net_match_overflow_0 peer_ifindex
        rx_err_lane_0_phy hni_pcs_fecl_errors_3
    """,
}
"""Of mlx5, bnxt_en, ice and irdma, hns and cxi, as their drivers spell them; queues have their sum beside them."""
KINDS = {name: kind for kind, names in NAMES.items() for name in names.split()}


def test_names_of_drivers():
    assert {name: kind_of(name) for name in KINDS} == KINDS
    assert kind_of("Nak Sequence Error") == "errors"  # irdma
    assert kind_of("[3]: rx_discards") is None  # a queue of bnxt_en


def test_growth_is_of_what_was_there_before_and_after():
    before = {"m/1": {"port_xmit_wait": 5, "symbol_error": 7, "rx_bytes": 1}, "gone": {"rx_bytes": 1}}
    after = {"m/1": {"port_xmit_wait": 9, "symbol_error": 2, "rx_bytes": 1, "new": 4}, "came": {"rx_bytes": 1}}
    assert growth(before, after) == {"m/1": {"port_xmit_wait": 4, "symbol_error": None}}  # None: was reset
    full = {"m/1": {"link_downed": 255, "symbol_error": 255, "port_rcv_data": 2**32 - 1, "rx_bytes": 2**32 - 1}}
    assert growth(full, full) == {"m/1": {"link_downed": None, "port_rcv_data": None}}  # they stay there


def test_an_older_record_has_the_counters_of_one_host():
    card = {"rx_errors": 1, "rx_bytes": 5, "collisions": "unknown"}
    before = {"network": {"eth0": card}, "infiniband": "unknown"}
    after = {"network": {"eth0": {"rx_errors": 4, "rx_bytes": 9}}, "infiniband": {"m/1": {"symbol_error": 2}}}
    older = {"hostname": "n1", "counters": before, "counters_after": after}
    assert recorded(older) == {"n1": {"eth0": {"rx_errors": 3, "rx_bytes": 4}}}
    assert recorded({"hostname": "n1", "counters": before}) == recorded({}) == {}


def test_launches_are_summed_by_host_and_device():
    one = {"n1": {"m/1": {"rx_errors": 1, "rx_bytes": None}}, "n2": None, "n3": {"m/1": {}}}
    other = {"n1": {"m/1": {"rx_errors": 2, "rx_bytes": 5}, "m/2": {"rx_errors": 4}}, "n2": {"m/1": {}}}
    summed = {"m/1": {"rx_errors": 3, "rx_bytes": None}, "m/2": {"rx_errors": 4}}
    assert total([one, other]) == {"n1": summed, "n2": None, "n3": {"m/1": {}}}
