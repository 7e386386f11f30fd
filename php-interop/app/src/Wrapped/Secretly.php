<?php

namespace App\Wrapped;

use Illuminate\Contracts\Queue\ShouldBeEncrypted;

class Secretly extends OnPaid implements ShouldBeEncrypted {}
