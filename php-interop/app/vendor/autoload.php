<?php

require_once '/usr/share/php/Illuminate/autoload.php';
// Debian's Laravel looks for it under another name.
require_once '/usr/share/php/Pheanstalk/autoload.php';
require_once __DIR__.'/composer/ClassLoader.php';

$loader = new Composer\Autoload\ClassLoader(
    [
        'App\\' => [dirname(__DIR__).'/src'],
        'Acme\Queued\\' => [__DIR__.'/acme/queued/src'],
        // Debian's own loader finds these classes; Composer's would say where they are.
        'Illuminate\\' => ['/usr/share/php/Illuminate'],
    ],
    ['Acme_Old_Job' => __DIR__.'/acme/queued/legacy/jobs.inc']
);
spl_autoload_register([$loader, 'loadClass']);

return $loader;
