<?php

namespace Acme\Queued\Jobs;

use Acme\Missing\Base;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Its parent is in a package that is not installed. */
class Orphan extends Base implements ShouldQueue
{
}
