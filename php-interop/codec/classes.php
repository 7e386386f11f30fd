<?php

/**
 * The classes of the codec fixtures. `vectors.php` and `exchange.php` serialize them for real.
 */

// Some of these classes use `Serializable` on purpose; PHP 8.1+ deprecates that while compiling. Only what ends the
// program is shown, and never on standard output.
error_reporting(E_ERROR);
ini_set('display_errors', 'stderr');
ini_set('serialize_precision', '-1');
ini_set('unserialize_max_depth', '4096');
ini_set('memory_limit', '-1');
date_default_timezone_set('UTC');

require __DIR__ . '/classes/plain.php';
require __DIR__ . '/classes/custom.php';
require __DIR__ . '/classes/app.php';
