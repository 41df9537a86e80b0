"""One Logger's spans and the attributes of its events and spans, as its enumerations and classes list them."""

from __future__ import annotations

SPANS = """
    application training_loop validation_loop testing_loop distributed_code_initialization data_loader_initialization
    model_initialization optimizer_initialization checkpoint_load checkpoint_save_sync checkpoint_save_async
    checkpoint_save_finalization training_single_iteration validation_single_iteration TESTING_SINGLE_ITERATION
    data_loading model_forward zero_grad model_backward optimizer_update
""".split()

EVENTS = {
    "one_logger_initialization": """
        world_size one_logger_training_telemetry_version enable_for_current_rank session_tag is_baseline_run
        summary_data_schema_version node_name rank custom_metadata
    """,
    "update_training_telemetry_config": """
        perf_tag global_batch_size log_every_n_train_iterations micro_batch_size seq_length flops_per_sample
        train_iterations_target train_samples_target checkpoint_strategy is_train_iterations_enabled
        is_validation_iterations_enabled is_test_iterations_enabled is_save_checkpoint_enabled
        is_log_throughput_enabled custom_metadata
    """,
    "training_metrics_update": """
        train_iterations_start current_iteration num_iterations train_samples_start num_train_samples interval
        avg_iteration_time_sec min_iteration_time_sec max_iteration_time_sec total_iteration_time_sec train_tokens
        completed_floating_point_operations_overall total_flops train_throughput_per_gpu train_throughput_per_gpu_max
        train_throughput_per_gpu_min first_logged_train_iterations_finish_timestamp_sec
        last_logged_train_iterations_finish_timestamp_sec avg_forward_time_sec avg_backward_time_sec
        avg_dataloader_time_sec avg_tflops avg_tokens_per_second latest_loss avg_batch_size
    """,
    "validation_metrics_update": """
        current_iteration interval avg_iteration_time_sec min_iteration_time_sec max_iteration_time_sec
        total_iteration_time_sec
    """,
    "testing_metrics_update": "current_iteration interval",
    "save_checkpoint_success": """
        checkpoint_strategy current_iteration first_successful_save_checkpoint_timestamp_sec
        latest_successful_save_checkpoint_timestamp_sec save_checkpoint_success_count productive_train_iterations
        productive_train_samples productive_train_iterations_sec productive_validation_iterations_sec
        productive_train_tflops training_start_timestamp_sec checkpoint_size checkpoint_directory
    """,
    "sync_checkpoint_metrics_update": """
        save_checkpoint_sync_time_total_sec save_checkpoint_sync_time_min_sec save_checkpoint_sync_time_max_sec
    """,
}
OF_SPANS = {
    "TrainingLoopAttributes": """
        train_iterations_start train_samples_start train_tokens_target completed_floating_point_operations_overall
        train_iterations_target train_samples_target
    """,
    "CheckpointSaveSpanAttributes": "checkpoint_strategy current_iteration save_checkpoint_attempt_count",
}
